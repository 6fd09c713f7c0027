// What the jobs of mpirun and srun have in common: the orders for the ranks, the address on which the launcher listens,
// and the wait for the profiling agents at the end. Plain functions.
#pragma once

#include <string>

#include "launch/job.h"
#include "launch/run_attempt.h"

namespace dtrain::run {

// Whether every rank is placed on this host.
bool is_on_one_host(const LaunchPlan& plan);

// What the launcher sends to the ranks. Also marks the run's folder as the launcher's (host_folder.h).
LaunchOrders orders_for(const Attempt& attempt);

// The address of this host that the ranks can reach. ConfigError if it is ambiguous.
std::string listening_address(const LaunchPlan& plan);

// The command that mpirun or srun starts for each rank.
std::vector<std::string> rank_command(const LaunchPlan& plan);

// Prints the warning and writes it as an event. A full disk does not change how the run has ended.
void warn_not_collected(const Attempt& attempt, const std::string& text);

// Waits until the profiling agents on this host have ended (a moment after their ranks), for some seconds at most.
void await_agents_here(const Attempt& attempt, const JobEnd& end);

}  // namespace dtrain::run
