// The machine's lock: a thread may hold it several times, and lets go of it altogether while it waits.
#pragma once

#include <mutex>

namespace dtrain::test::fake_gpu {

class Mutex {
 public:
  void lock() {
    mutex_.lock();
    ++depth_;
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    ++depth_;
    return true;
  }
  void unlock() {
    --depth_;
    mutex_.unlock();
  }

 private:
  friend class Released;

  std::recursive_mutex mutex_;
  int depth_ = 0;  // how often its holder holds it
};

// While it lives, the calling thread does not hold the lock, which it holds before and after.
class Released {
 public:
  explicit Released(Mutex& mutex) : mutex_(mutex), depth_(mutex.depth_) {
    for (int i = 0; i < depth_; ++i) mutex_.unlock();
  }
  ~Released() {
    for (int i = 0; i < depth_; ++i) mutex_.lock();
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  Mutex& mutex_;
  const int depth_;
};

}  // namespace dtrain::test::fake_gpu
