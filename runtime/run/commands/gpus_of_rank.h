// The GPUs and cores of a rank that mpirun or srun has started on its host: `dtrain start-rank` finds them there,
// because the launcher knows only its own host. One thread; looking at GPUs waits for the driver, with a deadline.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtrain/scheduler/cluster_agents.h"
#include "environment.h"

namespace dtrain::run {

struct ShareOfRank {
  std::vector<int> cpus;  // empty: the rank is not bound
  int threads = 0;        // how many can run at once
  std::vector<std::pair<std::string, std::string>> variables;
};

// From DTRAIN_GPUS and the usable GPUs of this host: all GPUs of the run's ranks here become visible, in the order of
// their local ranks, and the rank gets the cores near its own. ConfigError names the host: it lacks a GPU of the plan,
// or DTRAIN_GPUS is wrong. `host`: its name.
ShareOfRank gpus_of_rank(const Variables& variables, int rank, const std::string& host);

// The same on the usable GPUs in `slots`. If only one is visible where several are needed, Slurm has bound the rank to
// it, and it stays so.
ShareOfRank gpus_of_rank(const std::vector<scheduler::ClusterSlot>& slots, const std::string& assignment, int rank,
                         const std::string& host);

}  // namespace dtrain::run
