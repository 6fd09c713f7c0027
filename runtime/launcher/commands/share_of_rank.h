// The GPUs and cores of a rank that mpirun or srun has started on its host: `dtrain start-rank` finds them there,
// because the launcher knows only its own host. One thread; looking at GPUs waits for the driver, with a deadline.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtrain/host/cpu.h"
#include "dtrain/rank/environment.h"
#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::launcher {

struct ShareOfRank {
  std::vector<int> cpus;  // empty: the rank is not bound
  int threads = 0;        // the number that can run at once
  std::vector<std::pair<std::string, std::string>> variables;
};

// Reads DTRAIN_GPUS and the usable GPUs of this host: all GPUs of the run's ranks here become visible, in the order of
// their local ranks, and the rank gets the cores near its own GPU. ConfigError names the host: it lacks a GPU of the
// plan, or DTRAIN_GPUS is wrong. `host`: its name.
ShareOfRank gpus_of_rank(const rank::Variables& variables, int rank, const std::string& host);

// Does the same with the usable GPUs in `slots`. If only one is visible where several are needed, Slurm has bound the
// rank to that GPU, and the rank keeps it.
ShareOfRank gpus_of_rank(const std::vector<scheduler::ClusterSlot>& slots, const std::string& assignment, int rank,
                         const std::string& host);

// The host of a rank, for cores_of_rank() and keep_to_slot(), which are pure functions.
struct CoresOfHost {
  std::string name;               // of the host, for errors
  std::vector<host::Core> cores;  // that this process may use
  double cpu_limit = 0;           // CPUs' worth of time that the cgroup grants
  bool by_slurm = false;          // Slurm has started the rank
};

// Returns the slot's cores. Slots of a run that are made of cores are divided as on the launching host. If a cluster
// file declares more slots than the host has cores, ranks share cores, as on that host. ConfigError: as below.
ShareOfRank cores_of_rank(const rank::SlotOfRank& slot, const CoresOfHost& host);

// Leaves as many of the share's cores as the slot is to have, and as many threads as the launcher says, or else as the
// cgroup grants. Slurm was asked for CPUs, as it counts them: where these are siblings of one core, the rank has fewer
// cores, and keeps all of them. ConfigError: there are too few cores.
void keep_to_slot(ShareOfRank& share, const rank::SlotOfRank& slot, const CoresOfHost& host);

}  // namespace dtrain::launcher
