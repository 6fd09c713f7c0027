// The lanes of a process, and the threads that help where no caller advances them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lane.h"

namespace dtrain::torch_distributed {

// Operations are advanced by whoever issues, tests or waits. A rank may be busy elsewhere meanwhile, or blocked where
// it waits for a peer that needs this operation, so a thread looks every 0.2 ms while something moves, less and less
// often (every 2 ms) while something is outstanding and nothing moves, and sleeps otherwise. Futures are completed by
// threads of their own, because a callback may wait for another operation.
class Progress {
 public:
  // The only one of this process; a fork has its own. It is never destroyed: its threads may outlive static objects.
  static Progress& instance();

  void add(const std::shared_ptr<Lane>& lane);
  // Something is outstanding that nobody may be waiting for.
  void wake();
  // Advances a lane, and ends what has ended. `own`: the future of this work is completed here.
  void advance(Lane& lane, const GroupWork* own = nullptr);
  // Advances the lanes that no other thread advances now, except `but`. True if one is busy.
  bool advance_others(const Lane* but);
  // Ends these works; the future of `own` is completed here.
  void end(std::vector<WorkPtr>& works, const GroupWork* own = nullptr);
  // Completes the future of a work when the thread of its backward pass is blocked, unless the pass completes it.
  void watch(WorkPtr work);
  // Ends the threads. For the end of the process.
  void stop();

 private:
  // No mutex is held where a work may be destroyed: its tensors may belong to Python, whose lock the thread that waits
  // for the mutex may hold.
  void help();
  void rest(std::optional<std::chrono::nanoseconds> pause);
  void complete_later(WorkPtr work);
  void complete();
  bool complete_blocked(bool look);

  std::mutex mutex_;
  std::vector<std::weak_ptr<Lane>> lanes_;  // guarded by mutex_
  std::thread helper_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> stirred_{false};  // something was issued, or is to be watched, since the helper's last look
  std::atomic<bool> resting_{false};  // the helper has to be notified of that
  std::mutex rest_mutex_;
  std::condition_variable rest_ended_;

  std::mutex futures_mutex_;
  std::condition_variable futures_changed_;
  std::deque<WorkPtr> futures_;       // to be completed
  std::vector<WorkPtr> of_backward_;  // their futures wait for the end of a backward pass
  std::size_t idle_completers_ = 0;
};

}  // namespace dtrain::torch_distributed
