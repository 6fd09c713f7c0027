#include <cstring>
#include <string_view>

#include "dtrain/profile/recorder.h"

namespace dtrain::profile {

double bus_bandwidth(const CollectiveRecord& record) {
  const std::int64_t duration_ns = record.ended_ns - record.started_ns;
  if (duration_ns <= 0 || record.world_size <= 1) return 0;
  const double n = record.world_size;
  const std::string_view operation(record.operation, ::strnlen(record.operation, sizeof record.operation));
  double factor = 1;
  if (operation.starts_with("all_reduce")) factor = 2 * (n - 1) / n;
  if (operation.starts_with("reduce_scatter") || operation.starts_with("all_gather")) factor = (n - 1) / n;
  return static_cast<double>(record.bytes) * factor * 1e9 / static_cast<double>(duration_ns);
}

}  // namespace dtrain::profile
