// The memory that all ranks of a communicator share: the announcements and progress of each rank, the abort flag, and
// room for staging. Plain data and lock-free atomics only: in the shm backend other processes map it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "collective/descriptor.h"

namespace dtrain::comm {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kInlineMost = 1024;          // payloads up to this may travel beside the announcement …
inline constexpr std::size_t kInlineRead = 4096;          // … if a rank reads no more than this of all ranks' …
inline constexpr std::size_t kInlineAlways = 256;         // … or the payload is no larger than this
inline constexpr std::size_t kRingSlots = 128;            // operations a rank may be ahead of the slowest
inline constexpr std::size_t kStagingHalf = 256u * 1024;  // bytes of each half of a rank's staging area
inline constexpr std::size_t kCauseBytes = 4096;

// A rank's announcement of one operation. `ready` is written last, as sequence + 1: a reader that sees it sees the
// rest. Peers poll its cache line: a payload of a few bytes lies in that line, and a larger one two lines further on,
// because processors fetch lines in pairs.
struct alignas(2 * kCacheLine) Announcement {
  std::atomic<std::uint64_t> ready;
  Signature signature;
  std::byte few[kCacheLine - sizeof(std::uint64_t) - sizeof(Signature)];
  Place in;
  Place out;
  alignas(2 * kCacheLine) std::byte more[kInlineMost];

  std::byte* payload(std::size_t bytes) { return bytes <= sizeof few ? few : more; }
};

// Fetches all cache lines of memory that this rank is about to write. Peers have read it since it was written last, so
// each store would wait for its line in turn, which takes a good part of a small operation.
inline void take_back(std::byte* memory, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kCacheLine) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(memory[at]));  // the compiler's own needs a flag of this CPU
#else
    __builtin_prefetch(memory + at, 1);
#endif
  }
}

// Payloads up to this size travel beside the announcement: each rank then reads those of all others.
constexpr std::size_t inline_limit(int world_size) {
  const std::size_t share = kInlineRead / static_cast<std::size_t>(world_size);
  return share < kInlineAlways ? kInlineAlways : share < kInlineMost ? share : kInlineMost;
}

// Written by its rank, read by all. Counters only grow.
struct RankBlock {
  alignas(kCacheLine) std::atomic<std::uint64_t> phase;     // steps done, over all operations
  alignas(kCacheLine) std::atomic<std::uint32_t> sleeping;  // this rank sleeps on wake_word
  std::atomic<std::uint32_t> wake_word;                     // a futex; the waking rank changes it
  std::atomic<std::uint32_t> closed;                        // its communicator is gone: it enters no operation
  Announcement ring[kRingSlots];

  Announcement& slot(std::uint64_t sequence) { return ring[sequence % kRingSlots]; }
};

// A view of the shared memory; keeps its owner alive. Any thread may call abort() and abort_cause().
class Segment {
 public:
  static constexpr std::size_t kAlignment = alignof(RankBlock);  // bytes
  static std::size_t bytes_needed(int world_size);
  // Returns the offset of rank `r`'s staging area, with r = world_size their end; all else lies before the first one.
  static std::size_t staging_offset(int r, int world_size);
  // `memory` is zeroed (a rank's staging area once it is used), or was set up by another rank, aligned to kAlignment;
  // `owner` keeps it.
  Segment(std::shared_ptr<void> owner, std::byte* memory, int world_size);

  RankBlock& rank(int r) const { return ranks_[r]; }
  // Returns the staging area of rank `r`: two halves, used in turn.
  std::byte* staging(int r) const { return staging_ + static_cast<std::size_t>(r) * 2 * kStagingHalf; }

  bool aborted() const { return header_->abort_state.load(std::memory_order_acquire) != 0; }
  void abort(const std::string& cause);  // the first one stays; wakes all
  std::string abort_cause() const;

  // Wakes rank `r` if it sleeps; to be called when rank `r` may have something to do.
  void wake(int r) const;
  void wake_others(int me) const;
  // Sleeps until wake_word changes from `seen`, or the time is over.
  void sleep(int me, std::uint32_t seen, std::int64_t nanoseconds) const;

 private:
  struct alignas(kAlignment) Header {        // the ranks' blocks follow it
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
