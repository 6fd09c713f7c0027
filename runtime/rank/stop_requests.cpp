#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include <sys/signalfd.h>

#include "dtrain/base/error.h"
#include "dtrain/rank/stop_requests.h"

namespace dtrain::rank {

LaunchSignals::LaunchSignals() {
  ::sigemptyset(&set_);
  ::sigaddset(&set_, SIGTERM);
  for (const int signal : {SIGINT, SIGHUP}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) ::sigaddset(&set_, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  fd_.reset(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw SystemError("cannot make a signalfd", errno);
}

LaunchSignals::~LaunchSignals() {
  ::pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
}

std::optional<int> LaunchSignals::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

namespace {

// A signal handler can use static storage only; these variables are its whole state.
std::atomic<int> g_signal{0};
std::atomic<std::int64_t> g_first_ns{0};  // the time of the first signal, on the monotonic clock
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
  for (Before& before : before_) {
    ::sigaction(before.signal, nullptr, &before.action);
    const bool stays_ignored = before.signal != SIGTERM && before.action.sa_handler == SIG_IGN;
    if (!stays_ignored) ::sigaction(before.signal, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (const Before& before : before_) ::sigaction(before.signal, &before.action, nullptr);
}

int StopSignals::received() {
  return g_signal;
}

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

bool StopRequests::launcher_ends(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  if (launcher_ended_) return false;
  launcher_ = name;
  launcher_ended_ = true;
  return true;
}

bool StopRequests::requested() const {
  return launcher_ended_ || launcher_signal_ != 0 || keeper_asks_ != 0 || StopSignals::received() != 0;
}

std::string StopRequests::reason() const {
  if (launcher_ended_) {
    const std::scoped_lock lock(mutex_);
    return launcher_ + " is gone";
  }
  int signal = StopSignals::received();
  if (signal == 0) signal = launcher_signal_;
  if (signal != 0) return signal_name(signal);
  return keeper_asks_ != 0 ? kPaused : std::string();
}

}  // namespace dtrain::rank
