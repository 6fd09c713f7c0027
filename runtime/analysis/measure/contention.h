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
  // Of the CPU quota of its cgroup: percent of the quota's periods in which it was used up; empty: there is no quota.
  std::optional<double> throttled_percent;
  double throttled_s = 0;  // seconds of the loop for which the quota stopped it
  // Seconds without a core that are not the quota's doing.
  double taken_s() const { return wait_s > throttled_s ? wait_s - throttled_s : 0; }
};

// One for each rank of the profile.
std::vector<Contention> find_contention(const RunProfile& run);

// Seconds in which a rank's training thread had no core, mean over these ranks. Empty: recorded of none.
std::optional<double> no_core_s(const std::vector<Contention>& ranks);

// Seconds in which a rank's training thread had no core, but for those of a CPU quota, beyond the median of the others.
double lacking_s(const std::vector<Contention>& ranks, std::size_t rank);

// Of a sample of the ranks' host, percent of the time: for how long its cgroup's CPU quota stopped a rank whose
// training thread had no core for `wait_percent` (negative: not recorded). At most what the quota stopped, which is
// counted for each CPU, and at least its share of that, since a thread that waits for one that is stopped does not
// count as waiting for a core. `cpus`: that the host's ranks may run on; 0: not known. Empty: there is no
// quota.
std::optional<double> throttled_percent(const SystemLine& sample, double wait_percent, std::size_t cpus);

// Seconds for which a CPU quota stopped the ranks, mean over them.
double throttled_s(const std::vector<Contention>& ranks);

// What one copy of the parameters for all ranks of a host costs the optimizer step. Each rank writes its part of memory
// that the others have just read, while they write theirs: the exchange that sharded updates do without is paid by the
// caches, in that phase. A run with `sharded_optimizer: auto` has done the same updates both ways, in turns:
// replicated, where every rank writes all of its own copy, a world's part of it takes what the part would take alone.

bool updates_one_copy(const RunProfile& run);

// The share of its optimizer steps that would be left of them if no other rank used the same memory, at most 1: a
// world's part of what replicated updates took in `tried` (this run, or one of the same experiment), in the median of
// its turns, over what the run's own take, each of the rank for which it is longest. Empty: not one copy, or not tried.
// Any thread.
std::optional<double> unshared_update_share(const RunProfile& run, const RunProfile& tried);

}  // namespace dtrain::analysis
