// As many attempts at a run as its experiment allows (max_restarts). One thread.
#pragma once

#include "launch/run_attempt.h"

namespace dtrain::run {

// Starts the ranks as the plan's launcher does it, and again after a failure that may pass: a signal that nobody here
// has sent, or a lost host. What an attempt before the last has logged and recorded lies in the run's folder under
// attempt-N/.
Outcome run_attempts(const Attempt& attempt);

// Moves what an attempt has logged and recorded to attempt-N/ of the run's folder; N is returned.
int put_aside(const RunFolder& folder);

}  // namespace dtrain::run
