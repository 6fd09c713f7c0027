#include <algorithm>
#include <limits>

#include "dtrain/config/experiment.h"

#include "dtrain/base/text.h"

namespace dtrain::config {

std::string to_string(const Length& length) {
  const char* unit = length.unit == LengthUnit::kBatches   ? "batch"
                     : length.unit == LengthUnit::kRecords ? "record"
                                                           : "epoch";
  return count_of(length.count, unit);
}

std::int64_t in_batches(const Length& length, std::int64_t global_batch_size, std::int64_t batches_per_epoch) {
  switch (length.unit) {
    case LengthUnit::kBatches:
      break;
    case LengthUnit::kRecords:
      return length.count / global_batch_size + (length.count % global_batch_size != 0 ? 1 : 0);
    case LengthUnit::kEpochs: {
      std::int64_t batches = 0;
      const bool overflow = __builtin_mul_overflow(length.count, batches_per_epoch, &batches);
      return overflow ? std::numeric_limits<std::int64_t>::max() : batches;
    }
  }
  return length.count;
}

}  // namespace dtrain::config
