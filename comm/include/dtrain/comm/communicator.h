// Collective operations among the ranks of one generation.
//
// Every rank must issue the same operations with the same sizes and types in the same order; a rank that differs is
// an error on all of them that names both operations. Operations of one communicator complete in the order of issue.
// Until one is complete neither the program nor another operation may touch its memory. One thread at a time issues,
// progresses and waits; abort() may come from any thread. Every rank gets the same bits, and so does the next run:
// reductions take the ranks in an order that does not depend on timing (rank order; host, then hosts, where the backend
// is "hierarchical"; NCCL's own with "nccl"). Where an element is NaN on any rank, its minimum and its maximum are NaN,
// except with "nccl": NCCL's are fmin and fmax, which take a number before a NaN. Look for NaN by a sum there.
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

#include "dtrain/comm/types.h"
#include "dtrain/comm/work.h"

namespace dtrain::comm {

// Memory the communicator allocated, aligned to 64 bytes, zeroed. Where the backend can, peers read and write it in
// place: collectives on it copy nothing. Must be released before the communicator.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::span<std::byte> bytes() = 0;
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

  // Collective: every rank allocates the same sizes in the same order (sizes are compared).
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;
  // Collective: one memory that every rank maps; what one writes the others see after the next barrier(). Null on every
  // rank where the backend has no memory common to all of them. Not for collectives' data.
  virtual std::unique_ptr<Buffer> allocate_common(std::size_t bytes) = 0;

  // `count` elements of `type` from `in` to `out`, which are the same (in place) or do not overlap. Memory that is not
  // inside a Buffer is staged. kMean and scaling need a floating point type; sums and products of integers wrap.
  virtual Work all_reduce(const void* in, void* out, std::size_t count, DataType type,
                          const ReduceOptions& options = {}) = 0;
  // In place.
  Work all_reduce(void* data, std::size_t count, DataType type, const ReduceOptions& options = {}) {
    return all_reduce(data, data, count, type, options);
  }
  // `in` holds world_size() x `count` elements in rank order; this rank's `count` reduced ones go to `out`, which may
  // be its place in `in`. `in` is left with unspecified values only where `out` lies inside it.
  virtual Work reduce_scatter(const void* in, void* out, std::size_t count, DataType type,
                              const ReduceOptions& options = {}) = 0;
  // `out` holds world_size() x `count` elements in rank order; `in` may be this rank's place in `out`.
  virtual Work all_gather(const void* in, void* out, std::size_t count, DataType type, int bucket = -1) = 0;

  // The same two in place over `count` elements in all, of any number, divided as by part_of(). After reduce_parts()
  // this rank's part holds the result and the other parts are unspecified; gather_parts() hands every part to all. One
  // after the other is an all_reduce.
  virtual Work reduce_parts(void* data, std::size_t count, DataType type, const ReduceOptions& options = {}) = 0;
  virtual Work gather_parts(void* data, std::size_t count, DataType type, int bucket = -1) = 0;

  virtual Work broadcast(void* data, std::size_t count, DataType type, int root) = 0;
  virtual Work barrier() = 0;

  // Operations issued between the two are handed over together, at the end: fewer wake-ups of peers (and one launch
  // with NCCL). A Work of an open group may not be waited on. Groups do not nest; use Group.
  virtual void begin_group() = 0;
  virtual void end_group() = 0;

  // Moves outstanding operations on as far as possible without waiting. Costs well under a microsecond when there is
  // nothing to do: training calls it from every gradient hook, which is how all-reduce goes on during backward
  // without a thread that would take a core from it.
  virtual void progress() = 0;

  // Wakes every waiter, here and (shm, thread) on the peers, with a CommError that carries `cause`; later calls fail
  // with the same. Any thread; idempotent, the first cause stays.
  virtual void abort(const std::string& cause) = 0;
};

// Opens a group and closes it when it goes.
class Group {
 public:
  explicit Group(Communicator& communicator) : communicator_(communicator) { communicator_.begin_group(); }
  // An exception that unwinds it leaves the operations to the communicator's end.
  ~Group() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) communicator_.end_group();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

 private:
  Communicator& communicator_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace dtrain::comm
