// Makes as many attempts at a run as its experiment allows (max_restarts). One thread.
#pragma once

#include <functional>

#include "launch/run_attempt.h"

namespace dtrain::run {

// Starts the ranks with the plan's launcher, at first where `attempt.resume` says. Starts them again from the newest
// checkpoint after a failure that may pass, a signal that dtrain did not send or a lost host; and after an order to
// yield (LaunchTask::yields()), which does not count as a restart, once `wait_for_slots` has returned true. False: the
// launch was cancelled while it waited. `restarts`: how many of max_restarts are used already; a
// checkpoint that is further than where the attempt began sets it to 0. Logs and records of attempts before the last
// are in attempt-N/ of the run's folder.
Outcome run_attempts(Attempt attempt, int restarts, const std::function<bool()>& wait_for_slots);

}  // namespace dtrain::run
