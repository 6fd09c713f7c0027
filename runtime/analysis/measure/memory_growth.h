// Whether a rank's memory grows with every step.
#pragma once

#include <optional>

#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

struct MemoryGrowth {
  double bytes_per_step = 0;
  double grown_bytes = 0;            // in the steps looked at
  double steps = 0;                  // … of which there were this many
  std::optional<double> free_bytes;  // that its host had left at last
  double free_heap_bytes = 0;        // of grown_bytes, what is free on malloc's heap: fragmentation
};

// The first quarter of the run does not count: buffers and caches are filled then. Empty where memory does not grow
// steadily: by a like amount in each part of the rest, and in most pairs of samples.
std::optional<MemoryGrowth> find_growth(const RunProfile& run, const RankProfile& rank);

}  // namespace dtrain::analysis
