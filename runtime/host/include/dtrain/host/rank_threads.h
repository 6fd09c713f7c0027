// How many threads a rank computes with, and the environment variables that tell it. Whoever starts ranks decides it
// here: the scheduler for its slots, the launcher for ranks of this machine, of a pod, of mpirun and of srun, and a
// rank that no launcher has started. Pure functions, any thread.
//
//  - A number that the user has set counts: in the experiment's variables, else in the environment.
//  - Otherwise a rank has a thread for each of its cores, or fewer if a cgroup grants less time. A launch may try one
//    for each logical CPU, and then uses what it has measured to be faster.
//  - All ranks of a run have the number of the rank with the fewest.
//
// scheduler/core_groups.h decides which cores a rank has.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/host/cpu.h"

namespace dtrain::host {

struct RankThreads {
  int threads = 0;       // 0: not known
  int most_threads = 0;  // the number that a launch may try, one for each logical CPU; 0: not known
  bool operator==(const RankThreads&) const = default;
};

// Returns the threads that a cgroup allows each of `ranks` ranks, at least 1. Empty: it grants all the time of the
// host's `cpus` logical CPUs. `cpu_limit`: CPUs' worth of time.
std::optional<int> threads_granted(double cpu_limit, std::size_t cpus, int ranks);

// Returns the threads of a rank that has these cores with these logical CPUs, at least 1. `granted`: threads_granted().
RankThreads threads_on(int cores, std::size_t cpus, std::optional<int> granted);

// Returns the numbers of the rank with the fewest, leaving out ranks of which they are not known: with unlike numbers
// ranks would wait for each other, and the bits of a run would depend on which rank has which cores.
RankThreads threads_of_all(std::span<const RankThreads> ranks);

// Returns the threads of one of `ranks` ranks of this host which no launcher has started: as many as the cores to which
// it is bound, where the cgroup has as many for each rank; otherwise its share of all cores. At most its share of the
// time that the cgroup grants, at least 1.
int threads_of_process(const ProcessCores& mine, int ranks);

// Returns the threads of each of the `ranks` ranks that this process starts on its own cores, which they divide. At
// most their share of the time that the cgroup grants, at least 1.
int threads_of_children(const ProcessCores& mine, int ranks);

// Returns the number to which such a rank sets the threads of its library, which has `of_library` of them. Empty: it
// keeps them, because the user or a launcher has chosen them, with a variable or a call of the library.
std::optional<int> threads_to_set(int of_library, const std::map<std::string, std::string>& variables,
                                  const ProcessCores& mine, int ranks);

// Returns the number that the user has set for ranks with these variables (OMP_NUM_THREADS, of a list the first); 0 if
// it is none above 0, and the library decides. Empty: nothing is set.
std::optional<int> threads_of_user(const std::map<std::string, std::string>& variables);

// Returns the variables that the process of a rank with `threads` threads gets (0: not known) where `variables` are
// those of the process that starts it, besides what `of_experiment` sets. They include `of_experiment`.
std::map<std::string, std::string> thread_variables(
    const std::map<std::string, std::string>& variables,
    const std::vector<std::pair<std::string, std::string>>& of_experiment, int threads);

// Returns the variables by which OpenMP's threads wait for work in a rank; empty: the user has set OMP_WAIT_POLICY. The
// threads spin for some 0.1 ms, longer than it takes from one operator to the next, and then sleep, so that they do not
// take cores from others.
std::map<std::string, std::string> wait_of_threads(const std::map<std::string, std::string>& of_user);

}  // namespace dtrain::host
