// By how much this process's clocks differ from those of the machine: processes in different time namespaces (unshare
// --time, restored containers) see other times since boot. Read once. Any thread may call.
#pragma once

#include <chrono>

namespace dtrain {

// Of CLOCK_MONOTONIC and std::chrono::steady_clock; of the time since boot, which start times of processes are in.
std::chrono::nanoseconds monotonic_offset();
std::chrono::nanoseconds boottime_offset();

}  // namespace dtrain
