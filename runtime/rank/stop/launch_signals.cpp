#include "dtrain/rank/launch_signals.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <sys/signalfd.h>
#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
