// The memory all ranks of a communicator share for its own use: what each has entered and done, the abort flag, and
// room for staging. Plain data and lock-free atomics only: in the shm backend other processes map it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/comm/types.h"

namespace dtrain::comm {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kInlineBytes = 256;          // payloads up to this travel beside the descriptor
inline constexpr std::size_t kRingSlots = 128;            // operations a rank may be ahead of the slowest
inline constexpr std::size_t kStagingHalf = 256u * 1024;  // of the two pieces of memory peers cannot see
inline constexpr std::size_t kCauseBytes = 4096;

enum class Kind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kReduceParts,
  kAllGather,
  kGatherParts,
  kBroadcast,
  kBarrier,
  kAllocate,
  kAllocateCommon
};

// Where in the communicator's memory something lies.
struct Place {
  std::uint64_t offset = 0;
  std::int32_t buffer = -1;  // -1: not in a Buffer
};

// One rank's announcement of one operation.
struct Descriptor {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  double pre_scale = 1.0;
  double post_scale = 1.0;
  std::int32_t bucket = -1;
  std::int32_t root = -1;
  Kind kind = Kind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  Place in;
  Place out;  // of all_reduce alone: the only operation that writes to peers
};

// `ready` is sequence + 1 once the rest is written.
struct alignas(2 * kCacheLine) Slot {
  std::atomic<std::uint64_t> ready;
  Descriptor descriptor;
  std::byte payload[kInlineBytes];
};

// Written by its rank, read by all. Counters only grow.
struct RankBlock {
  alignas(kCacheLine) std::atomic<std::uint64_t> phase;     // steps done, over all operations
  alignas(kCacheLine) std::atomic<std::uint32_t> sleeping;  // this rank sleeps on wake_word
  std::atomic<std::uint32_t> wake_word;                     // a futex, changed by whoever wakes it
  std::atomic<std::uint32_t> closed;                        // its communicator is gone: it enters nothing more
  Slot ring[kRingSlots];

  Slot& slot(std::uint64_t sequence) { return ring[sequence % kRingSlots]; }
};

// A view of that memory; keeps its owner alive. abort() and abort_cause() from any thread.
class Segment {
 public:
  static std::size_t bytes_needed(int world_size);
  // `memory` is zeroed, or was set up by another rank, aligned to kCacheLine; `owner` keeps it.
  Segment(std::shared_ptr<void> owner, std::byte* memory, int world_size);

  RankBlock& rank(int r) const { return ranks_[r]; }
  // Two halves, used in turn.
  std::byte* staging(int r) const { return staging_ + static_cast<std::size_t>(r) * 2 * kStagingHalf; }

  bool aborted() const { return header_->abort_state.load(std::memory_order_acquire) != 0; }
  void abort(const std::string& cause);  // the first one stays; wakes all
  std::string abort_cause() const;

  // After rank `r` may have something to do: wakes it if it sleeps.
  void wake(int r) const;
  void wake_others(int me) const;
  // Sleeps until wake_word changes from `seen`, or the time is over.
  void sleep(int me, std::uint32_t seen, std::int64_t nanoseconds) const;

 private:
  struct alignas(kCacheLine) Header {
    std::atomic<std::uint32_t> abort_state;  // 0 no, 1 its cause is being written, 2 yes
    char cause[kCauseBytes];
  };

  std::shared_ptr<void> owner_;
  Header* header_;
  RankBlock* ranks_;
  std::byte* staging_;
  int world_size_;
};

}  // namespace dtrain::comm
