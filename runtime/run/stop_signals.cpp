#include "stop_signals.h"

#include <atomic>
#include <cstdint>
#include <ctime>

#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::run {
namespace {

// A signal handler reaches static storage only; this is all the state there is.
std::atomic<int> g_signal{0};
std::atomic<std::int64_t> g_seconds{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

void handle(int signal) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) {
    g_seconds = now.tv_sec;
  } else if (now.tv_sec - g_seconds > 1) {
    ::_exit(static_cast<int>(ExitCode::kInterrupted));
  }
}

}  // namespace

StopSignals::StopSignals() {
  g_signal = 0;
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
