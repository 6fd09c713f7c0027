// Waiting for what another process or thread does.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace dtrain {

// Whether the condition holds before a minute has passed, which is there against hangs alone.
inline bool eventually(const std::function<bool()>& condition) {
  constexpr std::chrono::seconds kHangs{60};
  const auto deadline = std::chrono::steady_clock::now() + kHangs;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace dtrain
