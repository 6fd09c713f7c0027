// How a run on this machine ended: from the ends of its ranks and their messages to a cause. Plain functions; they look
// into log files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/run/run_folder.h"
#include "launch/outcome.h"
#include "launch/rank_process.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// Why this rank is a cause of failure; empty where it is none (so far). `interrupted`: the launcher has sent the ranks
// signals.
std::optional<Failure> failure_of(const RankProcess& rank, const LaunchPlan& plan, bool interrupted);

// Once all have ended. Adds to `failure` what the logs and the other ranks say. `interrupted_by` is empty where nothing
// has.
Outcome local_outcome(const RunFolder& folder, const std::vector<RankProcess>& ranks, std::optional<Failure> failure,
                      const std::string& interrupted_by);

}  // namespace dtrain::run
