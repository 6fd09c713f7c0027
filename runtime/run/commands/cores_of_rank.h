// The cores of a rank that mpirun or srun has started on its host: `dtrain start-rank` finds them there, because the
// launcher knows only its own host. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "commands/gpus_of_rank.h"
#include "dtrain/host/topology.h"
#include "environment.h"

namespace dtrain::run {

struct CoresOfHost {
  std::string name;               // of the host, for errors
  std::vector<host::Core> cores;  // that this process may use
  double cpu_limit = 0;           // CPUs' worth of time that the cgroup grants
  bool by_slurm = false;          // Slurm has started the rank
};

// Its slot's cores. Slots of a run that are made of cores are divided as on the launching host. If a cluster file
// declares more slots than the host has cores, ranks share cores, as on the launching host. ConfigError: as below.
ShareOfRank cores_of_rank(const SlotOfRank& slot, const CoresOfHost& host);

// Leaves as many of the share's cores as the slot is to have, and as many threads as the launcher says, or else as the
// cgroup grants. Slurm was asked for CPUs, as it counts them: where these are siblings of one core, the rank has fewer
// cores, and keeps all of them. ConfigError: there are too few cores.
void keep_to_slot(ShareOfRank& share, const SlotOfRank& slot, const CoresOfHost& host);

}  // namespace dtrain::run
