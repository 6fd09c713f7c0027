// The state that a communicator of messages shares with its Work handles and with the thread that sends and receives:
// the operations, in order, and their end.
//
// The owner's thread issues, tests and waits; the thread of messages sends, receives and reduces (poll). They share
// `inbox_` (operations issued and not yet seen), each work's atomic `complete`, and the failure. Any thread may call
// abort().
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/arena_pins.h"
#include "dtrain/base/clock.h"
#include "dtrain/comm/backends.h"
#include "messages/message_operation.h"
#include "messages/message_thread.h"
#include "messages/message_transport.h"

namespace dtrain::comm {

class MessageCore;

// One operation and its handle.
class MessageWork final : public WorkState, public std::enable_shared_from_this<MessageWork> {
 public:
  MessageWork(std::shared_ptr<MessageCore> core, const Descriptor& descriptor, const void* in, void* out);

  bool test() override;
  void wait() override;
  WorkTiming timing() const override { return timing_; }
  std::size_t bytes() const override;
  std::uint64_t sequence() const override { return operation_.descriptor().sequence; }
  std::vector<MissingRank> missing() const override;

 private:
  friend class MessageCore;

  const std::shared_ptr<MessageCore> core_;
  MessageOperation operation_;
  MessageRoute route_;
  bool submitted_ = false;  // the owner's: not while its group is open
  ArenaPins pins_;          // until it is complete
  std::atomic<bool> complete_{false};
  WorkTiming timing_;  // started and ended are written before complete_, exposed by the owner
};

class MessageCore : public std::enable_shared_from_this<MessageCore> {
 public:
  explicit MessageCore(MessageSetup setup);

  int rank() const { return setup_.rank; }
  const std::string& backend() const { return setup_.backend; }
  int world_size() const { return static_cast<int>(setup_.members.size()); }

  // Called on the owner's thread.
  std::shared_ptr<MessageWork> issue(Descriptor descriptor, const void* in, void* out);
  void begin_group();
  void end_group();
  bool group_open() const { return group_open_; }
  void check();  // CommError when it has failed
  void close();  // no operation may follow; outstanding ones get a second to end
  // The thread of messages does not call any more. Forgets what did not end, if the transport allows it, so that the
  // connections end with the last handle.
  void release();

  // Called on any thread but that of messages. The first cause stays. Then nothing touches the operations' memory.
  void abort(const std::string& cause) {
    fail(cause, false);
    wait_until_untouched();
  }

  // Called on the thread of messages.
  Polled poll();

 private:
  friend class MessageWork;
  using Shared = std::shared_ptr<MessageWork>;

  void wait_for(MessageWork& work);
  Nanoseconds drive_others() const;  // returns the time after which it is due again
  void sleep_until(const std::function<bool()>& over, Nanoseconds until);
  void submit(std::vector<Shared> works);
  void fail(const std::string& cause, bool own);
  [[noreturn]] void throw_failure(const MessageWork* work, Nanoseconds since);
  void wait_until_untouched() const;
  std::unique_lock<std::mutex> lock_state() const;

  // Called with state_mutex_ held.
  Polled advance();
  void start_operations();
  void check_same(const MessageOperation& operation) const;
  void complete_in_order();
  std::vector<MissingRank> missing_of(const MessageOperation& operation) const;
  std::string describe_missing(const MessageOperation& operation) const;

  static std::string describe_waiting(const MessageWork& work, Nanoseconds elapsed, const char* verb);
  std::string describe_hindrance(const MessageWork& work) const;  // " behind …; missing: …"
  std::string rank_name(int r) const { return std::to_string(setup_.members[static_cast<std::size_t>(r)]); }
  Nanoseconds now() const { return clock_.monotonic(); }

  MessageSetup setup_;
  SystemClock clock_;
  std::uint64_t sequence_ = 0;  // the owner's, as are the next two
  bool group_open_ = false;
  std::vector<Shared> grouped_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // an operation completed, or the communicator failed
  std::vector<Shared> inbox_;        // guarded by mutex_, as are the next two
  std::string cause_;
  bool own_failure_ = false;  // this rank found the failure: the cause is complete
  std::atomic<bool> failed_{false};
  std::atomic<int> waiting_{0};

  mutable std::mutex state_mutex_;  // the state of the thread of messages, which a time-out reads; lock_state()
  std::deque<Shared> pending_;      // not complete, in order
  std::size_t started_ = 0;         // those of pending_ that have sent their hello
};

}  // namespace dtrain::comm
