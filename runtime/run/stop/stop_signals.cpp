#include "stop/stop_signals.h"

#include <atomic>
#include <cstdint>
#include <ctime>

#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::run {
namespace {

// A signal handler can use static storage only; these variables are its whole state.
std::atomic<int> g_signal{0};
std::atomic<std::int64_t> g_first_ns{0};  // when the first signal arrived, on the monotonic clock
constexpr std::int64_t kTogetherNs = 1'000'000'000;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

void handle(int signal) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  // The time decides which signal was first: two threads may handle two signals at once.
  std::int64_t first_ns = 0;
  if (g_first_ns.compare_exchange_strong(first_ns, now_ns)) {
    g_signal = signal;
  } else if (now_ns - first_ns >= kTogetherNs) {
    ::_exit(static_cast<int>(ExitCode::kInterrupted));
  }
}

}  // namespace

StopSignals::StopSignals() {
  g_signal = 0;
  g_first_ns = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, &term_before_);
  ::sigaction(SIGINT, &action, &int_before_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGTERM, &term_before_, nullptr);
  ::sigaction(SIGINT, &int_before_, nullptr);
}

int StopSignals::received() {
  return g_signal;
}

}  // namespace dtrain::run
