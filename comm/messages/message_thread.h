// The one thread that sends and receives messages. It sleeps while there is nothing to do. While operations are
// outstanding over MPI, it polls them often as long as something moves, and less and less often while nothing does,
// because polling takes cores from the ranks' computing. Any thread may call.
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

class MessageThread {
 public:
  // The moments at which the thread polls outstanding operations. MPI reports nothing by itself, so it must be polled
  // often; a transport that calls wake() is polled only then.
  enum class Looks { kOften, kWhenWoken };
  explicit MessageThread(Looks looks);
  ~MessageThread();
  MessageThread(const MessageThread&) = delete;
  MessageThread& operator=(const MessageThread&) = delete;

  // Runs `task` on the thread, soon.
  void post(std::function<void()> task);
  // Tells the thread that there is new work.
  void wake();
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
  Nanoseconds pause_after(Nanoseconds idle) const;

  struct Poller {
    int id;
    std::function<Polled()> poll;
  };

  const Looks looks_;
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

// A tag consists of the communicator, its operation and that operation's message. Every transport of Open MPI offers
// its 22 bits. Ranks are never so far apart that two outstanding operations get the same tag.
inline constexpr int kCommunicatorBits = 4;
inline constexpr int kSequenceBits = 16;
inline constexpr int kMessageBits = 2;

// The state that communicators of messages share with the thread that sends and receives for them.
// A rank that fails calls give_up(): from then on it calls MPI only to end the job, so MPI touches no memory that this
// rank releases.
struct MessageShared {
  explicit MessageShared(MessageThread::Looks looks) : thread(looks) {}

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
