// The tasks of the user's ledger, for the board. Any thread: each call opens the ledger.
#pragma once

#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"

namespace dtrain::board {

// Returns {tasks: [...]}: those that have not ended in the queue's order, then the last ended ones.
Json list_queue(const Clock& clock);

// "kill", "pause" or "activate". Returns {text}: what happens now. ConfigError: there is no such task or action, or it
// is not possible.
Json act_on_task(const Clock& clock, const std::string& id, const std::string& action);

}  // namespace dtrain::board
