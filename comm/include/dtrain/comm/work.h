// The handle of one asynchronous collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain::comm {

// The times of a collective, on the monotonic clock. `exposed` is the time that callers of the communicator (issue,
// progress, test, wait) spent on this operation, working or waiting: its cost for the program.
struct WorkTiming {
  Nanoseconds enqueued{0};
  Nanoseconds started{0};  // when this rank first moved data for it
  Nanoseconds ended{0};
  Nanoseconds exposed{0};
};

// A rank that an operation waits for, and the reason: "has not entered it (stopped: no heartbeats)".
struct MissingRank {
  int rank = -1;
  std::string lacks;
};

// The part of a Work that a backend implements. Calls come from the thread that issued the operation.
class WorkState {
 public:
  virtual ~WorkState() = default;
  virtual bool test() = 0;
  virtual void wait() = 0;
  // See Work::join(). Backends whose data is on a device replace it.
  virtual void join() { wait(); }
  virtual WorkTiming timing() const = 0;
  virtual std::size_t bytes() const = 0;  // of a rank's input or output, whichever is larger
  virtual std::uint64_t sequence() const = 0;
  // Returns the ranks that the operation waits for, as far as the backend can determine them.
  virtual std::vector<MissingRank> missing() const { return {}; }
};

// Copyable. The operation goes on even after the last handle is destroyed. The buffers must live until it is complete.
class Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // Advances the operation without blocking; true once it is complete on this rank.
  bool test() { return state_->test(); }
  // Blocks until complete. CommError when the deadline passes, a peer fails or differs, or the communicator is
  // aborted; it names operation, bucket, sequence number, elapsed time and the ranks concerned.
  void wait() { state_->wait(); }
  // Orders the operation before the caller's next use of the data. Data in host memory: like wait(). Data on a device:
  // the caller's current stream waits; the host goes on once the operation has been handed to the device. CommError as
  // wait(), for failures that are known by then.
  void join() { state_->join(); }
  WorkTiming timing() const { return state_->timing(); }
  std::size_t bytes() const { return state_->bytes(); }
  std::uint64_t sequence() const { return state_->sequence(); }
  std::vector<MissingRank> missing() const { return state_->missing(); }
  explicit operator bool() const { return static_cast<bool>(state_); }

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace dtrain::comm
