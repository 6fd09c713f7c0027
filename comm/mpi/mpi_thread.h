// The one thread that makes MPI calls. It sleeps while there is nothing to do; while operations are outstanding it
// looks after them often when something moves, and ever more seldom when nothing does: polling takes cores from the
// ranks' computing. Any thread may call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain::comm {

// What one look after a communicator's operations found.
struct Polled {
  bool moved = false;
  bool outstanding = false;  // look again soon
};

class MpiThread {
 public:
  MpiThread();
  ~MpiThread();
  MpiThread(const MpiThread&) = delete;
  MpiThread& operator=(const MpiThread&) = delete;

  // Runs `task` on the thread, soon.
  void post(std::function<void()> task);
  // There is something new to look after.
  void wake();
  // Calls `poll` from now on, until remove(), which returns once it is not being called; or after a second, where MPI
  // does not return.
  int add(std::function<Polled()> poll);
  void remove(int id);

  // A thread waits for an operation: polls eagerly instead of saving processor time.
  class Hurry {
   public:
    explicit Hurry(MpiThread& thread) : thread_(thread) { thread_.hurried_.fetch_add(1); }
    ~Hurry() { thread_.hurried_.fetch_sub(1); }
    Hurry(const Hurry&) = delete;
    Hurry& operator=(const Hurry&) = delete;

   private:
    MpiThread& thread_;
  };

 private:
  void run();
  Nanoseconds pause_after(Nanoseconds idle) const;

  struct Poller {
    int id;
    std::function<Polled()> poll;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_, as are the next three
  bool woken_ = false;
  bool stop_ = false;
  int next_id_ = 0;
  std::vector<Poller> pollers_;  // the thread's own
  std::atomic<int> hurried_{0};
  std::thread thread_;
};

}  // namespace dtrain::comm
