// The resources for which ranks and their loaders contend: cores, from the monitors' samples of the training loop;
// caches; and storage, as the loaders' workers recorded it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

// The sharing of a rank's cores with other programs.
struct Contention {
  int samples = 0;
  std::optional<double> foreign_percent;  // of one core: load on this rank's cores that no rank of the run caused
  std::optional<double> wait_percent;     // of the time in which its training thread could have run and had no core
  double wait_s = 0;                      // in seconds of the loop
  // Percent of the periods of the cgroup's CPU quota in which the quota was used up; empty: there is no quota.
  std::optional<double> throttled_percent;
  double throttled_s = 0;  // seconds of the loop for which the quota stopped it
  // Returns the seconds without a core that the quota does not explain.
  double taken_s() const { return wait_s > throttled_s ? wait_s - throttled_s : 0; }
};

std::vector<Contention> find_contention(const RunProfile& run);

// Returns the seconds in which a rank's training thread had no core, mean over these ranks. Empty: no rank recorded it.
std::optional<double> no_core_s(const std::vector<Contention>& ranks);

// Returns the seconds of taken_s() beyond the median of the other ranks.
double lacking_s(const std::vector<Contention>& ranks, std::size_t rank);

// Returns the percent of a sample's time in which the cgroup's CPU quota stopped a rank whose training thread had no
// core for `wait_percent` (negative: not recorded). The upper limit is the quota's stopped time, which the kernel
// counts for each CPU. The lower limit is one CPU's share of that, because a thread that waits for a stopped thread
// does not count as waiting for a core. `cpus`: number of CPUs of the host's ranks; 0: not known. Empty: there is no
// quota.
std::optional<double> throttled_percent(const SystemLine& sample, double wait_percent, std::size_t cpus);

// Returns the seconds for which a CPU quota stopped the ranks, mean over them.
double throttled_s(const std::vector<Contention>& ranks);

// The cost of one copy of the parameters for all ranks of a host, in the optimizer step. Each rank writes its part of
// memory that the others have just read, while they write theirs: sharded updates need no exchange, but in this phase
// the caches transfer the data. A run with `sharded_optimizer: auto` has done the same updates both ways, in turns.
// With replicated updates every rank writes all of its own copy, so 1 / world size of that time is the time of a part
// alone.

bool updates_one_copy(const RunProfile& run);

// Returns the share of the run's optimizer step that would remain if no other rank used the same memory, at most 1. It
// is 1 / world size of a replicated update in `tried` (this run, or one of the same experiment; median of its turns),
// over the run's own update, each on the rank with the longest one. Empty: not one copy, or not tried. Any thread.
std::optional<double> unshared_update_share(const RunProfile& run, const RunProfile& tried);

// The time of the loader of one rank, or of several ranks together, by state: on cores, waiting for a core, or waiting
// for storage.
struct LoaderUse {
  double read_s = 0;    // seconds of reading, added up over the workers
  double waited_s = 0;  // seconds for which the training waited for batches
  double steps_s = 0;   // seconds of the steps
  double workers = 0;   // of a rank, mean over batches
  LoaderUsage usage;

  double cpu_share() const;      // of read_s: on a core
  double no_core_share() const;  // ready to run, without a core
  double storage_share() const;  // the rest: waiting for storage or locks
  // Returns the mean bytes of a request to storage. Empty: (almost) nothing came from there.
  std::optional<double> bytes_of_request() const;
};

// `rank`: -1: all of the run. Empty: nothing was recorded.
std::optional<LoaderUse> loader_use(const RunProfile& run, int rank = -1);

// Return the place of loader settings such as the number of workers: "data.workers" in an experiment with a model,
// "LoaderSettings::workers" in a program.
bool has_data_keys(const RunProfile& run);
std::string loader_setting(const RunProfile& run, const std::string& key);

}  // namespace dtrain::analysis
