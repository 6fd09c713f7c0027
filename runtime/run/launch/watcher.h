// Watches the ranks of one attempt until the last has ended: passes interrupts on, updates the task's state, and ends
// ranks that hang. One thread.
#pragma once

#include "launch/run_attempt.h"
#include "launch/watched_ranks.h"

namespace dtrain::run {

void watch_ranks(const Attempt& attempt, WatchedRanks& ranks);

}  // namespace dtrain::run
