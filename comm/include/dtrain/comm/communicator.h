// Collective operations among the ranks of one generation.
//
// Every rank must issue the same operations with the same sizes and types in the same order; a rank that differs is
// an error on all of them that names both operations. Operations of one communicator complete in the order of issue.
// One thread at a time issues, progresses and waits; abort() may come from any thread. Sums are in fp32 or wider, in
// rank order whatever the timing, so every rank gets the same bits and so does the next run.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/comm/work.h"

namespace dtrain::comm {

enum class DataType : std::uint8_t { kUint8, kInt32, kInt64, kFloat32, kFloat64 };
enum class ReduceOp : std::uint8_t { kSum, kMin, kMax };

std::size_t size_of(DataType type);
std::string_view name_of(DataType type);
std::string_view name_of(ReduceOp op);

// Memory the communicator allocated, aligned to 64 bytes, zeroed. Where the backend can, peers read and write it in
// place: collectives on it copy nothing. Must be released before the communicator.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::span<std::byte> bytes() = 0;
};

struct AllReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  double post_scale = 1.0;  // the result is multiplied by it (floating point types only)
  int bucket = -1;          // shown in errors and records; -1: no bucket
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

  // In place, `count` elements of `type`. Memory that is not inside a Buffer is staged.
  virtual Work all_reduce(void* data, std::size_t count, DataType type, const AllReduceOptions& options = {}) = 0;
  // `out` holds world_size() x `count` elements in rank order.
  virtual Work all_gather(const void* in, void* out, std::size_t count, DataType type) = 0;
  virtual Work broadcast(void* data, std::size_t count, DataType type, int root) = 0;
  virtual Work barrier() = 0;

  // Moves outstanding operations on as far as possible without waiting. Costs well under a microsecond when there is
  // nothing to do: the engine calls it from every gradient hook, which is how all-reduce goes on during backward
  // without a thread that would take a core from it.
  virtual void progress() = 0;

  // Wakes every waiter, here and (shm, thread) on the peers, with a CommError that carries `cause`; later calls fail
  // with the same. Any thread; idempotent, the first cause stays.
  virtual void abort(const std::string& cause) = 0;
};

}  // namespace dtrain::comm
