#include "dtrain/scheduler/batch_split.h"

#include "dtrain/base/error.h"

namespace dtrain::scheduler {

BatchSplit split_batch(std::int64_t global_batch_size, int slots) {
  if (slots < 1) throw ConfigError("a batch cannot be split over " + std::to_string(slots) + " slots");
  if (global_batch_size < slots) {
    throw ConfigError("global_batch_size " + std::to_string(global_batch_size) +
                          " is smaller than the number of slots, " + std::to_string(slots),
                      "use a batch of at least " + std::to_string(slots) + ", or fewer slots");
  }
  BatchSplit split;
  split.per_slot = global_batch_size / slots;
  split.effective = split.per_slot * slots;
  split.dropped = global_batch_size - split.effective;
  if (split.dropped != 0) {
    split.warning = "global_batch_size " + std::to_string(global_batch_size) + " does not divide by " +
                    std::to_string(slots) + " slots: each takes " + std::to_string(split.per_slot) +
                    ", so a step trains on " + std::to_string(split.effective) +
                    "; the nearest sizes that divide are " + std::to_string(split.effective) + " and " +
                    std::to_string(split.effective + slots);
  }
  return split;
}

}  // namespace dtrain::scheduler
