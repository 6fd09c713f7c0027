#include "stop/exit_timer.h"

#include <unistd.h>

namespace dtrain::run {

void ExitTimer::cancel() {
  {
    const std::scoped_lock lock(mutex_);
    cancelled_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ExitTimer::arm(std::chrono::milliseconds grace, std::optional<int> code, std::function<void()> last_words) {
  const std::scoped_lock lock(mutex_);
  if (thread_.joinable() || cancelled_) return;
  thread_ = std::thread([this, grace, code, last_words = std::move(last_words)] {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, grace, [this] { return cancelled_; })) return;
    last_words();
    if (code) ::_exit(*code);
  });
}

}  // namespace dtrain::run
