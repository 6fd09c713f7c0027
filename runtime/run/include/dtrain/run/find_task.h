// A task by what somebody calls it. Plain functions.
#pragma once

#include <string>

#include "dtrain/run/run_folder.h"
#include "dtrain/scheduler/ledger.h"

namespace dtrain::run {

// The task that `text` means: its number ("127" or "task:127"), or a run that it is or was ("run:3", "run:mnist", as
// find_run() finds them; of several tasks the one that goes on, else the newest). ConfigError: there is none.
scheduler::Task find_task(scheduler::Ledger& ledger, const std::string& text);

// The folder of the run of task `number` ("127"). ConfigError: there is none, or it is gone.
RunFolder run_of_task(const std::string& number);

}  // namespace dtrain::run
