// What is the same whoever carries out a job for the launcher: what its ranks are given, where the launcher listens,
// whom it waits for in the end. Plain functions.
#pragma once

#include <string>

#include "launch/job.h"
#include "launch/run_attempt.h"

namespace dtrain::run {

// Every rank belongs on this host.
bool is_on_one_host(const LaunchPlan& plan);

// Marks the run's folder as the launcher's, too.
LaunchOrders orders_for(const Attempt& attempt);

// The address of this host that its ranks reach. ConfigError where it is not clear which.
std::string listening_address(const LaunchPlan& plan);

// What mpirun or srun is to start for a rank.
std::vector<std::string> rank_command(const LaunchPlan& plan);

// On the screen and as an event. A disk that is full by then changes nothing about how the run has ended.
void warn_not_collected(const Attempt& attempt, const std::string& text);

// Until the agent processes on this host have ended, or for some seconds: they end last, a moment after their ranks.
void await_agents_here(const Attempt& attempt, const JobEnd& end);

}  // namespace dtrain::run
