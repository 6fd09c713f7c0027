// Divides a global batch over slots. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::config {

struct BatchSplit {
  std::int64_t per_slot = 0;   // records of each global batch that a slot takes
  std::int64_t effective = 0;  // per_slot x slots: records that a step trains on
  std::int64_t dropped = 0;    // the remainder, less than the number of slots
  std::string warning;  // says that the batch is no multiple of the slots and names the nearest multiples; else empty
};

// Divides the batch over the slots. ConfigError if there are more slots than records.
BatchSplit split_batch(std::int64_t global_batch_size, int slots);

// Returns the sizes nearest to `global_batch_size` that divide by `slots`: one or two, ascending, none below `slots`.
std::vector<std::int64_t> sizes_that_divide(std::int64_t global_batch_size, int slots);

// The batch size and slots that an experiment requests.
struct BatchAndSlots {
  std::int64_t global_batch_size = 0;
  int slots = 0;
  int cpus = 0;  // logical CPUs of all slots together; 0: not known
};

// Returns a warning if there are more slots than before but no larger batch, so that each slot has less work between
// two exchanges; else empty. No warning if the slots are known to be a different division of the same CPUs.
// `before_is`: the source of the former request, such as "experiment.yaml".
std::string weak_scaling_advice(const BatchAndSlots& before, const BatchAndSlots& now, const std::string& before_is);

}  // namespace dtrain::config
