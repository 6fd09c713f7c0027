// The memory that the ranks of a host share for their messages: a ring of bytes for each ordered pair of ranks, and
// what wakes and ends their waits. Lock-free atomics and plain data only, because each rank is a process of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/base/shared_memory.h"
#include "mailbox/byte_pipe.h"

namespace dtrain::comm {

inline constexpr std::size_t kMailRing = 256u << 10;  // bytes

// The ends of a ring. Counters only grow: one is written by the sender, the other by the receiver.
struct RingEnds {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

// Ranks are numbered within the host. Any thread may call abort() and abort_cause(); the rest belongs to one thread.
class RingMemory {
 public:
  // Makes the memory of a host; the other ranks map it. Of the rings nothing is reserved yet.
  static SharedMemory make(int ranks);
  // CommError if the memory is too small.
  RingMemory(SharedMemory memory, int ranks, int me);

  int ranks() const { return ranks_; }
  RingEnds& ends(int from, int to) const { return ends_[index(from, to)]; }
  std::byte* ring(int from, int to) const { return rings_ + index(from, to) * kMailRing; }
  // Must be called by the sender before it writes a ring for the first time. SystemError if the host has no memory
  // left.
  void reserve(int from, int to) const;

  bool aborted() const { return header_->abort_state.load(std::memory_order_acquire) != 0; }
  void abort(const std::string& cause);  // the first one stays; wakes all
  std::string abort_cause() const;

  void close();  // this rank sends nothing more
  bool has_closed(int rank) const { return bells_[rank].closed.load() != 0; }

  // Notes that a rank may have something to do; wake_touched() then wakes those that sleep.
  void touch(int rank) { touched_ |= std::uint64_t{1} << (rank % 64); }
  void wake_touched();
  void wake_all() const;
  // A rank that wants to sleep reads its word, announces that it sleeps, looks once more and sleeps until the word has
  // changed or the time is over.
  std::uint32_t word() const { return bells_[me_].word.load(); }
  void announce_sleep(bool sleeps) const;
  void sleep(std::uint32_t seen, std::int64_t nanoseconds) const;

 private:
  static constexpr std::size_t kCauseBytes = 4096;
  struct alignas(64) Header {
    std::atomic<std::uint32_t> abort_state;  // 0 no, 1 its cause is being written, 2 yes
    char cause[kCauseBytes];
  };
  struct alignas(64) Bell {
    std::atomic<std::uint32_t> sleeping;
    std::atomic<std::uint32_t> word;  // a futex; the waking rank changes it
    std::atomic<std::uint32_t> closed;
  };
  static std::size_t bytes_before_rings(int ranks);
  std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(to);
  }

  SharedMemory memory_;
  const int ranks_;
  const int me_;
  Header* header_;
  Bell* bells_;
  RingEnds* ends_;
  std::byte* rings_;
  std::uint64_t touched_ = 0;  // a bit for the ranks that are equal modulo 64
};

// The pipe between two ranks of a host.
class RingPipe final : public BytePipe {
 public:
  RingPipe(std::shared_ptr<RingMemory> memory, int me, int peer);
  std::size_t write(std::span<iovec> pieces) override;
  std::size_t read(void* to, std::size_t bytes) override;
  std::optional<PipeEnd> end() const override;

 private:
  const std::shared_ptr<RingMemory> memory_;
  const int me_;
  const int peer_;
  RingEnds& out_;
  RingEnds& in_;
  std::byte* const out_ring_;
  const std::byte* const in_ring_;
  bool reserved_ = false;
};

}  // namespace dtrain::comm
