// Time, passed in so that tests can replace it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dtrain {

using Nanoseconds = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns the time since boot (CLOCK_MONOTONIC): comparable between the processes of one host, never goes back.
  virtual Nanoseconds monotonic() const = 0;
  // Returns the time since 1970-01-01 UTC (CLOCK_REALTIME): comparable between hosts if their clocks agree.
  virtual Nanoseconds wall() const = 0;
};

class SystemClock final : public Clock {
 public:
  Nanoseconds monotonic() const override;
  Nanoseconds wall() const override;
};

// Returns "2026-03-01T12:34:56.789012Z".
std::string format_utc(Nanoseconds wall);
double to_seconds(Nanoseconds duration);
double to_seconds(std::int64_t nanoseconds);

// The offsets of this process's clocks from those of the machine: processes in different time namespaces (unshare
// --time, restored containers) see other times since boot. Read once. Any thread may call. They are for CLOCK_MONOTONIC
// (std::chrono::steady_clock), and for the time since boot, as in start times of processes.
Nanoseconds monotonic_offset();
Nanoseconds boottime_offset();

}  // namespace dtrain
