#include "parallel_pieces.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace dtrain::checkpoints {

void for_each_piece(std::size_t count, int threads, const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& on_progress, const std::function<void()>& on_start) {
  constexpr std::chrono::milliseconds kProgressPeriod{100};
  const std::size_t workers = std::min<std::size_t>(static_cast<std::size_t>(threads), count);
  if (workers <= 1 && !on_progress && !on_start) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> done{0};
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t running = workers;
  std::exception_ptr failure;

  const auto run = [&] {
    try {
      if (on_start) on_start();
      for (std::size_t i = next++; i < count; i = next++) {
        work(i);
        ++done;
      }
    } catch (...) {
      next = count;  // the other threads take no more pieces
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    --running;
    ended.notify_one();
  };
  {
    std::vector<std::jthread> pool;
    for (std::size_t i = 0; i < workers; ++i) pool.emplace_back(run);
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kProgressPeriod, [&] { return running == 0; })) {
      if (!on_progress) continue;
      lock.unlock();
      on_progress(done);
      lock.lock();
    }
  }
  if (failure) std::rethrow_exception(failure);
  if (on_progress) on_progress(done);
}

}  // namespace dtrain::checkpoints
