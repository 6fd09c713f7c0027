// Start times of processes. A number and a start time identify a process, because numbers are reused.
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/host/processes.h"

namespace dtrain::run {

using host::start_ticks;

// The start of this process on the monotonic clock.
Nanoseconds process_start(const Clock& clock);

}  // namespace dtrain::run
