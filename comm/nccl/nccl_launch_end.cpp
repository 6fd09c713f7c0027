#include "nccl/nccl_launch_end.h"

#include <chrono>
#include <utility>

namespace dtrain::comm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kEager{200};  // asks again at once for so long: most launches take less
constexpr std::chrono::microseconds kNap{50};     // then this often

}  // namespace

NcclLaunchEnd::NcclLaunchEnd(SharedNcclApi api, int device, NcclLink& link)
    : api_(std::move(api)), device_(device), link_(link), thread_([this] { run(); }) {}

NcclLaunchEnd::~NcclLaunchEnd() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclLaunchEnd::begin(std::function<void()> behind) {
  {
    const std::scoped_lock lock(mutex_);
    behind_ = std::move(behind);
  }
  changed_.notify_all();
}

bool NcclLaunchEnd::look() {
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  return look_locked();
}

bool NcclLaunchEnd::look_locked() {
  if (!link_.ready()) return false;
  if (auto behind = std::exchange(behind_, {})) behind();
  return true;
}

void NcclLaunchEnd::run() {
  static_cast<void>(api_->cudaSetDevice(device_));
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || (behind_ && !error_); });
    const auto began = SteadyClock::now();
    while (!ending_ && behind_ && !error_) {
      try {
        if (look_locked()) break;
      } catch (...) {
        error_ = std::current_exception();  // the owner's next look() throws it
        break;
      }
      if (SteadyClock::now() - began < kEager) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      } else {
        changed_.wait_for(lock, kNap, [this] { return ending_; });
      }
    }
  }
}

}  // namespace dtrain::comm
