// A process named so that no later one is taken for it: numbers are used again, start times are not.
#pragma once

#include <cstdint>

#include <sys/types.h>

#include "dtrain/base/clock.h"

namespace dtrain::run {

// When a process started, in clock ticks since boot; 0 when there is no such process (a zombie does not count).
std::uint64_t start_ticks(pid_t pid);

// When this process started, on the monotonic clock.
Nanoseconds process_start(const Clock& clock);

}  // namespace dtrain::run
