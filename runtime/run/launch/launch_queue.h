// A launch before it runs: its request to the ledger, and its wait in the queue. Plain functions; one thread.
#pragma once

#include "folder/event_log.h"
#include "launch/detached.h"
#include "launch/launch_task.h"
#include "plan/launch_plan.h"
#include "stop/launch_signals.h"

namespace dtrain::run {

scheduler::TaskRequest task_request(const LaunchPlan& plan, const std::filesystem::path& run_dir);

// Waits until the plan's ranks have their slots, and assigns them in the plan. Prints what the launch waits for, writes
// it as an event, and passes it to the process in the foreground (`detached`; null without --detach). False: the launch
// was cancelled, which is printed too.
bool wait_in_queue(LaunchPlan& plan, const std::filesystem::path& run_dir, LaunchTask& task, LaunchSignals& signals,
                   EventLog& events, Detached* detached);

}  // namespace dtrain::run
