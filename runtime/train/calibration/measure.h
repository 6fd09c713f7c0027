// Measures the limits of this machine for one rank, while one process for each rank measures.
#pragma once

#include <vector>

#include "dtrain/profile/rank_limits.h"

namespace dtrain::calibration {

struct Setting {
  int threads = 1;                     // of a rank: one thread for each core
  int most_threads = 0;                // one thread for each logical CPU, which is tried; 0 or `threads`: not tried
  int ranks = 1;                       // of this host
  std::vector<std::vector<int>> cpus;  // of each rank; empty: not pinned
};

// Takes about 2 s, and up to 20 s on a machine that is busy with other things. The calling process must have one
// thread, and must not have used libtorch. Error: a process that measures has failed.
profile::RankLimits measure(Setting setting);

}  // namespace dtrain::calibration
