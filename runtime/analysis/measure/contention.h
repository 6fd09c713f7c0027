// How much each rank had to share its cores, from the agents' samples of the training loop.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

struct Contention {
  int samples = 0;
  std::optional<double> foreign_percent;  // of one core: load on this rank's cores that no rank of the run caused
  std::optional<double> wait_percent;     // of the time in which its training thread could have run and had no core
  double wait_s = 0;                      // … in seconds of the loop
};

// One for each rank of the profile.
std::vector<Contention> find_contention(const RunProfile& run);

// Seconds in which a rank's training thread had no core, mean over these ranks. Empty: recorded of none.
std::optional<double> no_core_s(const std::vector<Contention>& ranks);

// Seconds in which a rank's training thread had no core, beyond the median of the others.
double lacking_s(const std::vector<Contention>& ranks, std::size_t rank);

}  // namespace dtrain::analysis
