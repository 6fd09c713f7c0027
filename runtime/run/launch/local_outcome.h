// How a run on this machine ended: derives the cause from the exit statuses and messages of its ranks. Plain functions;
// they read log files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/run/run_folder.h"
#include "launch/outcome.h"
#include "launch/rank_process.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// The failure that this rank caused; empty if it caused none (so far). `interrupted`: the launcher has sent signals to
// the ranks.
std::optional<Failure> failure_of(const RankProcess& rank, const LaunchPlan& plan, bool interrupted);

// The outcome once all ranks have ended. Adds log lines and the ranks that stopped because of it to `failure`.
Outcome local_outcome(const RunFolder& folder, const std::vector<RankProcess>& ranks, std::optional<Failure> failure,
                      const Interrupt& interrupt);

}  // namespace dtrain::run
