#include "shared_memory/segment.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <thread>

namespace dtrain::comm {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

std::size_t Segment::bytes_needed(int world_size) {
  return staging_offset(world_size, world_size);
}

std::size_t Segment::staging_offset(int r, int world_size) {
  return sizeof(Header) + static_cast<std::size_t>(world_size) * sizeof(RankBlock) +
         static_cast<std::size_t>(r) * 2 * kStagingHalf;
}

Segment::Segment(std::shared_ptr<void> owner, std::byte* memory, int world_size)
    : owner_(std::move(owner)),
      header_(reinterpret_cast<Header*>(memory)),
      ranks_(reinterpret_cast<RankBlock*>(memory + sizeof(Header))),
      staging_(memory + staging_offset(0, world_size)),
      world_size_(world_size) {}

void Segment::abort(const std::string& cause) {
  std::uint32_t none = 0;
  if (!header_->abort_state.compare_exchange_strong(none, 1)) return;
  const std::size_t length = std::min(cause.size(), kCauseBytes - 1);
  std::memcpy(header_->cause, cause.data(), length);
  header_->cause[length] = 0;
  header_->abort_state.store(2);
  for (int r = 0; r < world_size_; ++r) {
    // Wakes every rank, not only those that sleep, because a rank may be about to sleep.
    rank(r).wake_word.fetch_add(1);
    futex(rank(r).wake_word, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

std::string Segment::abort_cause() const {
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

void Segment::wake(int r) const {
  RankBlock& block = rank(r);
  if (block.sleeping.load() == 0) return;
  block.wake_word.fetch_add(1);
  futex(block.wake_word, FUTEX_WAKE, INT_MAX, nullptr);
}

void Segment::wake_others(int me) const {
  for (int r = 0; r < world_size_; ++r) {
    if (r != me) wake(r);
  }
}

void Segment::sleep(int me, std::uint32_t seen, std::int64_t nanoseconds) const {
  const timespec timeout{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  futex(rank(me).wake_word, FUTEX_WAIT, seen, &timeout);
}

}  // namespace dtrain::comm
