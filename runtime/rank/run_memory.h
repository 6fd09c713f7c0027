// The states in memory of a run whose hosts have a folder each, at the start of a rank: hosts with keepers, and those
// of ranks that mpirun or srun starts for `dtrain launch`. Functions that take `control` are collective.
#pragma once

#include <optional>
#include <vector>

#include "dtrain/comm/control.h"
#include "dtrain/rank/launcher_link.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_memory.h"
#include "rank_start.h"

namespace dtrain::rank {

// Returns what each host has of the run that the ranks are told to go on with. Sets `memory.kept`.
std::vector<checkpoints::HostStates> look_at_hosts(comm::ControlPlane& control, const RankIdentity& identity,
                                                   const config::Experiment& experiment, RunMemory& memory);

// Rank 0: finds where the run goes on, in memory or on the disk, before the plan is written anew. Warns if the furthest
// state in memory is lost. SystemError, ConfigError as find_resume_point().
ResumePoint choose_resume_point(const RunFolder& folder, const std::vector<checkpoints::HostStates>& hosts,
                                const RankIdentity& identity, RunMemory& memory, const Logger& log);
// Rank 0: the run begins anew.
void begin_anew(RunMemory& memory);

// Tells all ranks what rank 0 has decided, and makes the folder of each host.
void open_memory(comm::ControlPlane& control, const RankIdentity& identity, const config::Experiment& experiment,
                 const RunFolder& folder, RunMemory& memory);

// For ranks that mpirun or srun has started: finds where the run goes on, in memory or where the launcher says, and
// makes the folder of each host if the launcher wants states in memory. Warns as choose_resume_point().
ResumePoint open_launched_memory(comm::ControlPlane& control, const RankIdentity& identity,
                                 const config::Experiment& experiment, const LaunchOrders& orders, RunMemory& memory,
                                 const Logger& log);

// Removes the folder of this host. Called on all ranks.
void remove_memory(const RunMemory& memory, const comm::World& world);

}  // namespace dtrain::rank
