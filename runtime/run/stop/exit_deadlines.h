// Ends this process if its training thread does not return after a failure elsewhere: a thread that hangs in a kernel
// or a library cannot be woken. The last resort. Thread safe.
#pragma once

#include <mutex>
#include <string>

#include "dtrain/base/log.h"
#include "stop/exit_timer.h"

namespace dtrain::run {

class ExitDeadlines {
 public:
  explicit ExitDeadlines(Logger log) : log_(std::move(log)) {}

  // A few seconds; a minute if the rank has left its last step and saves. Training calls give_time_to_save() then,
  // before or after the launcher's end.
  void after_launcher_end();
  void give_time_to_save();
  void after_rank_failure();
  // The host of another rank does not answer. If this host is the one that is cut off, nothing else ends Open MPI's
  // daemon here: this rank soon ends the daemon and itself.
  void after_host_silence(const std::string& cause);

 private:
  void arm_for_saving();

  const Logger log_;
  std::mutex mutex_;
  bool saves_ = false;           // guarded by mutex_
  bool launcher_ended_ = false;  // guarded by mutex_
  ExitTimer launcher_exit_;
  ExitTimer saving_exit_;
  ExitTimer exit_;
  ExitTimer cut_off_;
};

}  // namespace dtrain::run
