// Makes as many attempts at a run as its experiment allows (max_restarts). One thread.
#pragma once

#include "launch/run_attempt.h"

namespace dtrain::run {

// Starts the ranks with the plan's launcher, and starts them again after a failure that may pass: a signal that dtrain
// did not send, or a lost host. Logs and records of attempts before the last are in attempt-N/ of the run's folder.
Outcome run_attempts(const Attempt& attempt);

// Moves the logs and records of an attempt to attempt-N/ of the run's folder. Returns N.
int put_aside(const RunFolder& folder);

}  // namespace dtrain::run
