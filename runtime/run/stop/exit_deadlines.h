// Ends this process if its training thread does not return after a failure elsewhere: a thread that hangs in a kernel
// or a library cannot be woken. The last resort. Thread safe.
#pragma once

#include <string>

#include "dtrain/base/log.h"
#include "stop/exit_timer.h"

namespace dtrain::run {

class ExitDeadlines {
 public:
  explicit ExitDeadlines(Logger log) : log_(std::move(log)) {}

  void after_launcher_end();
  void after_rank_failure();
  // The host of another rank does not answer. If this host is the one that is cut off, nothing else ends Open MPI's
  // daemon here: this rank soon ends the daemon and itself.
  void after_host_silence(const std::string& cause);

 private:
  const Logger log_;
  ExitTimer exit_;
  ExitTimer cut_off_;
};

}  // namespace dtrain::run
