// Deadlines that end a rank that does not end by itself. Thread safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dtrain/base/log.h"

namespace dtrain::run {

// Ends the process with _exit if it does not end by itself in time.
class ExitTimer {
 public:
  ~ExitTimer() { cancel(); }
  // After `grace` calls `last_words`, then exits with `code`; without a code the process goes on. cancel() prevents
  // both. Only the first call has an effect.
  void arm(std::chrono::milliseconds grace, std::optional<int> code, std::function<void()> last_words);
  // Returns once `last_words` is not running. After that arm() does nothing.
  void cancel();

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false;
  std::thread thread_;
};

// Ends this process if its training thread does not return after a failure elsewhere: a thread that hangs in a kernel
// or a library cannot be woken. The last resort.
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
