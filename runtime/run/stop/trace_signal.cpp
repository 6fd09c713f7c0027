#include "stop/trace_signal.h"

#include <algorithm>
#include <atomic>

namespace dtrain::run {
namespace {

// A signal handler can use static storage only; this variable is its whole state.
constexpr int kNothing = -1;
std::atomic<int> g_asked{kNothing};
static_assert(std::atomic<int>::is_always_lock_free);

void handle_trace_signal(int, siginfo_t* info, void*) {
  g_asked = info->si_code == SI_QUEUE ? std::max(0, info->si_value.sival_int) : 0;
}

}  // namespace

TraceSignal::TraceSignal() {
  g_asked = kNothing;
  struct sigaction action {};
  action.sa_sigaction = handle_trace_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(SIGUSR2, &action, &before_);
}

TraceSignal::~TraceSignal() {
  ::sigaction(SIGUSR2, &before_, nullptr);
}

std::optional<int> TraceSignal::take() {
  if (g_asked.load(std::memory_order_relaxed) == kNothing) return std::nullopt;
  const int asked = g_asked.exchange(kNothing);
  return asked == kNothing ? std::nullopt : std::optional(asked);
}

}  // namespace dtrain::run
