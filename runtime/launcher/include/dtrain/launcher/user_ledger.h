// The ledger of this user on this machine (docs/launching.md gives its path), and its tasks by number and by run. Plain
// functions.
#pragma once

#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/scheduler/ledger.h"

namespace dtrain::launcher {

// Throws as scheduler::Ledger::open() does.
scheduler::Ledger open_user_ledger(const Clock& clock);

// Returns the task that `text` names: its number ("127" or "task:127"), or its run ("run:3", "run:mnist", as find_run()
// finds it). If the run has several tasks, the one that has not ended, else the newest. ConfigError: there is none.
scheduler::Task find_task(scheduler::Ledger& ledger, const std::string& text);

// Returns the folder of the run of task `number` ("127"). ConfigError: there is no such task, or the folder is gone.
rank::RunFolder run_of_task(const std::string& number);

}  // namespace dtrain::launcher
