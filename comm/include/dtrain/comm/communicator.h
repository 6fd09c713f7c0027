// Collective operations among the ranks of one generation.
//
// Every rank must issue the same operations with the same sizes and types in the same order. If one rank issues another
// operation, all ranks get an error that names both. Operations of one communicator complete in the order of issue.
// Until an operation is complete, neither the program nor another operation may touch its memory. Only one thread at a
// time may issue, progress or wait; any thread may call abort(). Every rank gets the same bits, and so does the next
// run, because the order of a reduction does not depend on timing. Values are reduced in rank order; with
// "hierarchical", first over the ranks of each host, then over the hosts; with "nccl", in NCCL's own order. If an
// element is NaN on any rank, its minimum and its maximum are NaN. "nccl" differs: its fmin and fmax prefer a number to
// a NaN, so use a sum to detect NaN there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/types.h"

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
  // See Work::source().
  virtual int source() const { return -1; }
};

// The handle of one asynchronous collective. Copyable. The operation goes on even after the last handle is destroyed.
// The buffers must live until it is complete.
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
  // Returns the rank that has sent what was received (dtrain/comm/mailbox.h); -1: nothing yet, or another operation.
  int source() const { return state_->source(); }
  std::vector<MissingRank> missing() const { return state_->missing(); }
  explicit operator bool() const { return static_cast<bool>(state_); }

 private:
  std::shared_ptr<WorkState> state_;
};

// Memory that the communicator has allocated, aligned to 64 bytes, zeroed. If the backend can, peers read and write it
// in place, so collectives on it copy nothing. Must be released before the communicator.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::span<std::byte> bytes() = 0;
  // Gives the pages that lie wholly inside these bytes, `count` of them from `begin` on, back to the kernel. They read
  // as zeros until they are written again. This rank's operations on these bytes must be complete: then no peer reads
  // them any more. Returns the number of bytes given back; 0 for memory of a device, or if the kernel refuses.
  virtual std::size_t release(std::size_t begin, std::size_t count) {
    static_cast<void>(begin);
    static_cast<void>(count);
    return 0;
  }
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  // Every element is multiplied by pre_scale before the reduction and the result by post_scale; floating point types
  // only. Narrow types (float16, bfloat16) are scaled and reduced in float32 and rounded once, at the end.
  double pre_scale = 1.0;
  double post_scale = 1.0;
  int bucket = -1;  // shown in errors and records; -1: no bucket
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::uint32_t generation() const = 0;
  virtual std::string_view backend() const = 0;  // "thread", "shm", …

  // Allocates a Buffer. Collective: every rank allocates the same sizes in the same order (sizes are compared).
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;
  // Allocates one memory that every rank maps. Collective. After the next barrier() all ranks see the writes of each.
  // Null on every rank if the backend has no memory common to all of them. Not for the data of collectives.
  virtual std::unique_ptr<Buffer> allocate_common(std::size_t bytes) = 0;

  // Reduces `count` elements of `type` from `in` into `out`. The two are the same memory (in place) or do not overlap.
  // Memory that is not inside a Buffer is staged. kMean and scaling need a floating point type, bitwise operations
  // another type; sums and products of integers wrap. CommError at once if the arguments are invalid.
  virtual Work all_reduce(const void* in, void* out, std::size_t count, DataType type,
                          const ReduceOptions& options = {}) = 0;
  // Reduces in place.
  Work all_reduce(void* data, std::size_t count, DataType type, const ReduceOptions& options = {}) {
    return all_reduce(data, data, count, type, options);
  }
  // `in` holds world_size() x `count` elements in rank order. This rank's `count` reduced elements go to `out`, which
  // may be their place in `in`. If `out` lies inside `in`, `in` has unspecified values afterwards; otherwise it is
  // unchanged.
  virtual Work reduce_scatter(const void* in, void* out, std::size_t count, DataType type,
                              const ReduceOptions& options = {}) = 0;
  // `out` holds world_size() x `count` elements in rank order; `in` may be this rank's place in `out`.
  virtual Work all_gather(const void* in, void* out, std::size_t count, DataType type, int bucket = -1) = 0;

  // Reduce-scatter and all-gather in place, over `count` elements in total. part_of() divides them among the ranks;
  // `count` need not be divisible. After reduce_parts() this rank's part holds the result and the other parts are
  // unspecified. gather_parts() gives every part to all ranks. One after the other, they are an all_reduce.
  virtual Work reduce_parts(void* data, std::size_t count, DataType type, const ReduceOptions& options = {}) = 0;
  virtual Work gather_parts(void* data, std::size_t count, DataType type, int bucket = -1) = 0;

  // Reduces as all_reduce() does, but only rank `root` gets the result, in its `out`. On the other ranks `out` is not
  // used and may be null. CommError if there is no such rank.
  virtual Work reduce(const void* in, void* out, std::size_t count, DataType type, int root,
                      const ReduceOptions& options = {}) = 0;
  // Copies `count` elements of rank `root` to all ranks, in place. CommError if there is no such rank.
  virtual Work broadcast(void* data, std::size_t count, DataType type, int root) = 0;
  // Complete once all ranks have issued the barrier.
  virtual Work barrier() = 0;

  // Operations issued between these two calls start together, at the second one: fewer wake-ups of peers (and one
  // launch with NCCL). A Work of an open group may not be waited on. Groups do not nest. Callers use the class Group.
  virtual void begin_group() = 0;
  virtual void end_group() = 0;

  // Advances outstanding operations as far as possible without waiting. Costs well under a microsecond when there is
  // nothing to do. Training calls it from every gradient hook, so all-reduce goes on during backward without a thread
  // that would take a core from backward.
  virtual void progress() = 0;

  // Ends every wait with a CommError that carries `cause`, on this rank and (shm, thread) on its peers. Later calls
  // fail with the same error. Any thread may call. Of several causes, the first one stays.
  virtual void abort(const std::string& cause) = 0;
};

// Opens a group; the destructor closes it.
class Group {
 public:
  explicit Group(Communicator& communicator) : communicator_(communicator) { communicator_.begin_group(); }
  // After an exception in the scope, the operations never start; they end with the communicator.
  ~Group() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) communicator_.end_group();
  }
  Group& operator=(Group&&) = delete;

 private:
  Communicator& communicator_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace dtrain::comm
