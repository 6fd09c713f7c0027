// SIGINT, SIGTERM and SIGHUP of a launcher (the last where nohup has not asked to ignore it), read from a descriptor
// instead of ending it. From construction to destruction, on the thread that made it; before other threads exist.
#pragma once

#include <csignal>
#include <optional>
#include <string>

#include "dtrain/base/fd.h"

namespace dtrain::run {

class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  int fd() const { return fd_.get(); }  // readable (poll) when there is a signal
  // The next one that has come.
  std::optional<int> next();

 private:
  sigset_t set_{};
  UniqueFd fd_;
};

// "SIGINT"
std::string signal_name(int signal);

}  // namespace dtrain::run
