// Ends the process with _exit when it does not come to an end by itself in time: a training thread that hangs in a
// kernel or a library cannot be woken in any other way. Thread safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace dtrain::run {

class ExitTimer {
 public:
  ~ExitTimer();
  // After `grace` calls `last_words`, then exits with `code`; without a code the process goes on. Neither happens where
  // this object is destroyed before. The first call counts.
  void arm(std::chrono::milliseconds grace, std::optional<int> code, std::function<void()> last_words);

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false;
  std::thread thread_;
};

}  // namespace dtrain::run
