#include "dtrain/config/batch_split.h"

#include "dtrain/base/error.h"

namespace dtrain::config {

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
    split.warning = "global_batch_size " + std::to_string(global_batch_size) + " is not a multiple of " +
                    std::to_string(slots) + " slots: each trains " + std::to_string(split.per_slot) +
                    ", so a batch holds " + std::to_string(split.effective) + "; the nearest multiples are " +
                    std::to_string(split.effective) + " and " + std::to_string(split.effective + slots);
  }
  return split;
}

std::vector<std::int64_t> sizes_that_divide(std::int64_t global_batch_size, int slots) {
  const std::int64_t below = global_batch_size / slots * slots;
  if (below == global_batch_size && below > 0) return {below};
  if (below == 0) return {slots};
  return {below, below + slots};
}

std::string weak_scaling_advice(const BatchAndSlots& before, const BatchAndSlots& now, const std::string& before_is) {
  if (before.slots < 1 || now.slots <= before.slots || now.global_batch_size > before.global_batch_size) return {};
  if (now.cpus > 0 && now.cpus <= before.cpus) return {};
  const std::int64_t per_slot = before.global_batch_size / before.slots;
  return std::to_string(now.slots) + " slots, where " + before_is + " has " + std::to_string(before.slots) +
         ", but no larger batch: each slot takes " + std::to_string(now.global_batch_size / now.slots) +
         " records between two exchanges instead of " + std::to_string(per_slot) +
         "; hyperparameters.global_batch_size: " + std::to_string(per_slot * now.slots) +
         " keeps them as busy (weak scaling; the learning rate may need to grow with it)";
}

}  // namespace dtrain::config
