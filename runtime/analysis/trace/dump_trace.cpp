#include "trace/dump_trace.h"

#include <string>

namespace dtrain::analysis {

profile::TraceLog log_of_dump(const RankProfile& rank) {
  profile::TraceLog log;
  for (const StepLine& step : rank.steps) log.on_step(step.batch, step.start_ns, step.start_ns + step.wall_ns);
  for (const CollectiveLine& line : rank.collectives) {
    profile::CollectiveRecord record;
    record.sequence = static_cast<std::uint64_t>(line.sequence);
    record.bucket = static_cast<std::int32_t>(line.bucket);
    const std::string operation(name_of(line.operation));
    operation.copy(record.operation, sizeof record.operation - 1);
    record.bytes = static_cast<std::uint64_t>(line.bytes);
    record.world_size = static_cast<std::int32_t>(line.world_size);
    record.enqueued_ns = line.enqueued_ns;
    record.started_ns = line.started_ns;
    record.ended_ns = line.ended_ns;
    record.exposed_ns = line.exposed_ns;
    log.on_collective(line.batch, record);
  }
  return log;
}

}  // namespace dtrain::analysis
