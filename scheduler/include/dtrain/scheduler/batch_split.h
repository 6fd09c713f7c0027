// How a global batch is divided over slots. Pure function, any thread.
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::scheduler {

struct BatchSplit {
  std::int64_t per_slot = 0;   // records every slot takes of each global batch
  std::int64_t effective = 0;  // per_slot x slots: what a step really trains on
  std::int64_t dropped = 0;    // the remainder, below the number of slots
  std::string warning;         // empty where the batch divides; else says so, with the nearest sizes that do
};

// ConfigError where there are more slots than records.
BatchSplit split_batch(std::int64_t global_batch_size, int slots);

}  // namespace dtrain::scheduler
