// The offsets of this process's clocks from those of the machine: processes in different time namespaces (unshare
// --time, restored containers) see other times since boot. Read once. Any thread may call.
#pragma once

#include <chrono>

namespace dtrain {

// For CLOCK_MONOTONIC (std::chrono::steady_clock), and for the time since boot, as in start times of processes.
std::chrono::nanoseconds monotonic_offset();
std::chrono::nanoseconds boottime_offset();

}  // namespace dtrain
