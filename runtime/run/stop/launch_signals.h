// SIGINT, SIGTERM and SIGHUP of a launcher, read from a file descriptor instead of ending the process. SIGINT and
// SIGHUP stay ignored if the process was started so (nohup, a shell script's background job). In effect while the
// object exists, on the thread that made it. Construct before other threads exist.
#pragma once

#include <csignal>
#include <optional>
#include <string>

#include "dtrain/base/file.h"

namespace dtrain::run {

class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  int fd() const { return fd_.get(); }  // readable (poll) when a signal has arrived
  // Returns the next signal that has arrived.
  std::optional<int> next();

 private:
  sigset_t set_{};
  UniqueFd fd_;
};

// "SIGINT"
std::string signal_name(int signal);

}  // namespace dtrain::run
