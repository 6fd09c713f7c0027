// A process named so that no later one is taken for it: numbers are used again, start times are not.
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/host/processes.h"

namespace dtrain::run {

using host::start_ticks;

// When this process started, on the monotonic clock.
Nanoseconds process_start(const Clock& clock);

}  // namespace dtrain::run
