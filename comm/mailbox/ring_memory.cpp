#include "mailbox/ring_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <thread>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

long futex_call(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

std::size_t RingMemory::bytes_before_rings(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (sizeof(Header) + count * sizeof(Bell) + count * count * sizeof(RingEnds) + page - 1) / page * page;
}

SharedMemory RingMemory::make(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t before = bytes_before_rings(ranks);
  SharedMemory memory = SharedMemory::create_unreserved("mailbox", before + count * count * kMailRing);
  memory.reserve(0, before);
  return memory;
}

RingMemory::RingMemory(SharedMemory memory, int ranks, int me) : memory_(std::move(memory)), ranks_(ranks), me_(me) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t needed = bytes_before_rings(ranks) + count * count * kMailRing;
  if (memory_.size() < needed) {
    throw CommError("the memory for messages has " + std::to_string(memory_.size()) + " bytes where " +
                    std::to_string(needed) + " are due");
  }
  std::byte* const data = memory_.data();
  header_ = reinterpret_cast<Header*>(data);
  bells_ = reinterpret_cast<Bell*>(data + sizeof(Header));
  ends_ = reinterpret_cast<RingEnds*>(data + sizeof(Header) + count * sizeof(Bell));
  rings_ = data + bytes_before_rings(ranks);
}

void RingMemory::reserve(int from, int to) const {
  memory_.reserve(static_cast<std::size_t>(ring(from, to) - memory_.data()), kMailRing);
}

void RingMemory::abort(const std::string& cause) {
  std::uint32_t none = 0;
  if (header_->abort_state.compare_exchange_strong(none, 1)) {
    const std::size_t length = std::min(cause.size(), kCauseBytes - 1);
    std::memcpy(header_->cause, cause.data(), length);
    header_->cause[length] = 0;
    header_->abort_state.store(2);
  }
  wake_all();
}

std::string RingMemory::abort_cause() const {
  // The writer needs a microsecond, unless it is killed in just that one.
  for (int i = 0; i < 1000 && header_->abort_state.load(std::memory_order_acquire) == 1; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  switch (header_->abort_state.load(std::memory_order_acquire)) {
    case 0:
      return {};
    case 1:
      return "aborted by a rank that was killed before it could record the cause";
    default:
      return header_->cause;
  }
}

void RingMemory::close() {
  bells_[me_].closed.store(1);
  wake_all();
}

// Wakes every rank, not only those that sleep, because a rank may be about to sleep.
void RingMemory::wake_all() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    bells_[rank].word.fetch_add(1);
    futex_call(bells_[rank].word, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void RingMemory::wake_touched() {
  if (touched_ == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the counters of the rings come before the look at `sleeping`
  for (int rank = 0; rank < ranks_; ++rank) {
    Bell& bell = bells_[rank];
    if ((touched_ >> (rank % 64) & 1) == 0 || bell.sleeping.load() == 0) continue;
    bell.word.fetch_add(1);
    futex_call(bell.word, FUTEX_WAKE, INT_MAX, nullptr);
  }
  touched_ = 0;
}

void RingMemory::announce_sleep(bool sleeps) const {
  bells_[me_].sleeping.store(sleeps ? 1 : 0);
  if (sleeps) std::atomic_thread_fence(std::memory_order_seq_cst);  // the looks that follow must not come before it
}

void RingMemory::sleep(std::uint32_t seen, std::int64_t nanoseconds) const {
  const timespec timeout{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  futex_call(bells_[me_].word, FUTEX_WAIT, seen, &timeout);
}

RingPipe::RingPipe(std::shared_ptr<RingMemory> memory, int me, int peer)
    : memory_(std::move(memory)),
      me_(me),
      peer_(peer),
      out_(memory_->ends(me, peer)),
      in_(memory_->ends(peer, me)),
      out_ring_(memory_->ring(me, peer)),
      in_ring_(memory_->ring(peer, me)) {}

std::size_t RingPipe::write(std::span<iovec> pieces) {
  const std::uint64_t begin = out_.written.load(std::memory_order_relaxed);
  const std::size_t room = kMailRing - (begin - out_.read.load(std::memory_order_acquire));
  std::size_t done = 0;
  for (const iovec& piece : pieces) {
    const std::byte* from = static_cast<const std::byte*>(piece.iov_base);
    for (std::size_t left = std::min(piece.iov_len, room - done); left > 0;) {
      if (!reserved_) memory_->reserve(me_, peer_);
      reserved_ = true;
      const std::size_t at = (begin + done) % kMailRing;
      const std::size_t most = std::min(left, kMailRing - at);
      std::memcpy(out_ring_ + at, from, most);
      from += most;
      left -= most;
      done += most;
    }
  }
  if (done == 0) return 0;
  out_.written.store(begin + done, std::memory_order_release);
  memory_->touch(peer_);
  return done;
}

std::size_t RingPipe::read(void* to, std::size_t bytes) {
  const std::uint64_t begin = in_.read.load(std::memory_order_relaxed);
  const std::size_t most = std::min(bytes, in_.written.load(std::memory_order_acquire) - begin);
  if (most == 0) return 0;
  const std::size_t at = begin % kMailRing;
  const std::size_t first = std::min(most, kMailRing - at);
  std::memcpy(to, in_ring_ + at, first);
  std::memcpy(static_cast<std::byte*>(to) + first, in_ring_, most - first);
  in_.read.store(begin + most, std::memory_order_release);
  memory_->touch(peer_);
  return most;
}

std::optional<PipeEnd> RingPipe::end() const {
  if (!memory_->has_closed(peer_)) return std::nullopt;
  if (in_.written.load(std::memory_order_acquire) != in_.read.load(std::memory_order_relaxed)) return std::nullopt;
  return PipeEnd{"has closed its mailbox"};
}

}  // namespace dtrain::comm
