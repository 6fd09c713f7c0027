// The one thread that sends and receives messages. It sleeps while there is nothing to do. While operations are
// outstanding over MPI, it polls them often as long as something moves, and less and less often while nothing does,
// because polling takes cores from the ranks' computing. Over TCP it sleeps until a socket can be read or written, and
// a thread that waits for an operation does its work meanwhile. Any thread may call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain::comm {

// The result of one look at a communicator's operations.
struct Polled {
  bool moved = false;
  bool outstanding = false;  // look again soon
};

// The sleep of a thread of messages whose transport says when there is something to do.
class MessageWaiter {
 public:
  virtual ~MessageWaiter() = default;
  // Sleeps until there is something to do for the transport, or wake(). Only the thread of messages; while held, it
  // sleeps on.
  virtual void sleep() = 0;
  virtual void hold(bool held) = 0;
  // Waits for the same, at most `timeout`, and tells the transport what there is to do. One thread at a time.
  virtual void wait(Nanoseconds timeout) = 0;
  // Ends the waits that run, or the next ones. Any thread.
  virtual void wake() = 0;
};

class MessageThread {
 public:
  // Without a waiter, outstanding operations are polled: MPI reports nothing by itself.
  explicit MessageThread(std::unique_ptr<MessageWaiter> waiter = nullptr);
  ~MessageThread();
  MessageThread(const MessageThread&) = delete;
  MessageThread& operator=(const MessageThread&) = delete;

  // Runs `task` on the thread, soon.
  void post(std::function<void()> task);
  // Tells the thread that there is new work.
  void wake();
  // The same; where there is a waiter and the thread sleeps, the caller does the first of the work itself.
  void begin();
  // Does the thread's work until `over` or `until` (on the monotonic clock). False: it did not, because there is no
  // waiter or another thread does it.
  bool work_until(const std::function<bool()>& over, Nanoseconds until);
  // Calls `poll` from now on, until remove(). remove() returns once `poll` is not being called, or after a second if
  // the transport does not return.
  int add(std::function<Polled()> poll);
  void remove(int id);

  // Makes MessageThread poll eagerly, instead of saving processor time, while another thread waits for an operation.
  class Hurry {
   public:
    explicit Hurry(MessageThread& thread) : thread_(thread) { thread_.hurried_.fetch_add(1); }
    ~Hurry() { thread_.hurried_.fetch_sub(1); }
    Hurry(const Hurry&) = delete;
    Hurry& operator=(const Hurry&) = delete;

   private:
    MessageThread& thread_;
  };

 private:
  void run();
  void run_waiting();
  bool look(Nanoseconds timeout);
  Polled run_tasks_and_poll(const std::vector<std::function<void()>>& tasks);
  Nanoseconds pause_after(Nanoseconds idle) const;

  struct Poller {
    int id;
    std::function<Polled()> poll;
  };

  const std::unique_ptr<MessageWaiter> waiter_;
  std::mutex working_;               // held by the thread that does the work, where there is a waiter
  std::atomic<bool> helped_{false};  // in work_until()
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_, as are the next three
  bool woken_ = false;
  bool stop_ = false;
  int next_id_ = 0;
  std::vector<Poller> pollers_;  // of the thread that does the work
  std::atomic<int> hurried_{0};
  std::thread thread_;
};

// A tag consists of the communicator, its operation and that operation's message. Every transport of Open MPI offers
// its 22 bits. Ranks are never so far apart that two outstanding operations get the same tag.
inline constexpr int kCommunicatorBits = 4;
inline constexpr int kSequenceBits = 16;
inline constexpr int kMessageBits = 2;

// The state that communicators of messages share with the thread that sends and receives for them.
// A rank that fails calls give_up(): from then on it calls MPI only to end the job, so MPI touches no memory that this
// rank releases.
struct MessageShared {
  explicit MessageShared(std::unique_ptr<MessageWaiter> waiter = nullptr) : thread(std::move(waiter)) {}

  std::atomic<bool> given_up{false};
  // The first cause stays.
  void give_up(const std::string& because) {
    const std::scoped_lock lock(mutex);
    if (given_up) return;
    cause = because;
    given_up = true;
  }
  std::string why_given_up() {
    const std::scoped_lock lock(mutex);
    return cause;
  }
  // Keeps memory longer than its owner, because the transport may still use it.
  void keep(std::shared_ptr<std::byte> memory) {
    const std::scoped_lock lock(mutex);
    kept.push_back(std::move(memory));
  }

  std::mutex mutex;
  std::string cause;  // guarded by mutex, as is the next
  std::vector<std::shared_ptr<std::byte>> kept;
  std::atomic<int> communicators{0};  // number that this rank has made; each has tags of its own
  MessageThread thread;               // ends before the other members are destroyed
};

}  // namespace dtrain::comm
