// A launch before it runs: what it asks the ledger for, and its time in the queue. Plain functions; one thread.
#pragma once

#include "folder/event_log.h"
#include "launch/detached.h"
#include "launch/launch_signals.h"
#include "launch/launch_task.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

scheduler::TaskRequest task_request(const LaunchPlan& plan, const std::filesystem::path& run_dir);

// Until the plan's ranks have their slots, which are then in the plan. What it waits for is printed, written to the
// events, and told to who started it in the background (`detached`; may be null). False: it was cancelled, which is
// printed too.
bool wait_in_queue(LaunchPlan& plan, const std::filesystem::path& run_dir, LaunchTask& task, LaunchSignals& signals,
                   EventLog& events, Detached* detached);

}  // namespace dtrain::run
