// Ends the process with _exit if it does not end by itself in time. Thread safe.
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

}  // namespace dtrain::run
