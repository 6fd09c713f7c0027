// Waits for a file descriptor with a deadline; private to base. Any thread.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <poll.h>

#include "dtrain/base/error.h"

namespace dtrain {

// Returns false if the time is over first. A negative time-out waits for ever.
inline bool wait_readable(int fd, std::chrono::milliseconds timeout) {
  using Steady = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  const bool forever = timeout.count() < 0;
  const auto deadline = Steady::now() + std::min(timeout, std::chrono::milliseconds(std::chrono::hours(24 * 365)));
  while (true) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now());
    left = std::clamp(left, std::chrono::milliseconds(0), kLongest);
    pollfd entry{fd, POLLIN, 0};
    const int count = ::poll(&entry, 1, forever ? -1 : static_cast<int>(left.count()));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for descriptor " + std::to_string(fd), errno);
    if (!forever && Steady::now() >= deadline) return false;
  }
}

}  // namespace dtrain
