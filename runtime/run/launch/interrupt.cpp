#include "launch/interrupt.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <sys/signalfd.h>
#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::run {

std::string stopping_line(const Interrupt& interrupt) {
  if (interrupt.repeats) return "dtrain: " + interrupt.why + ": the ranks are stopping already; another one kills them";
  if (interrupt.yields) return "dtrain: " + interrupt.why + ": saving after the current step, to go on later";
  return "dtrain: " + interrupt.why + ": stopping after the current step; a second " + interrupt.why +
         " kills the ranks";
}

int exit_code_of_stop(const Interrupt& interrupt, int of_ranks) {
  const int preempted = static_cast<int>(ExitCode::kPreempted);
  if (of_ranks == static_cast<int>(ExitCode::kDone)) return of_ranks;
  // Ranks that saved because of an order to yield do not know of a SIGINT that came later.
  const bool goes_on_later = of_ranks == preempted && !(interrupt.exists() && interrupt.signal == SIGINT);
  return goes_on_later ? preempted : static_cast<int>(ExitCode::kInterrupted);
}

LaunchSignals::LaunchSignals() {
  ::sigemptyset(&set_);
  ::sigaddset(&set_, SIGINT);
  ::sigaddset(&set_, SIGTERM);
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) ::sigaddset(&set_, SIGHUP);
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

}  // namespace dtrain::run
