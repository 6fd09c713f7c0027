#include <atomic>
#include <cerrno>
#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/saver.h"

namespace dtrain::checkpoints {
namespace {

constexpr std::size_t kPage = 4096;  // page of the layout; the kernel's page may be larger
constexpr std::size_t kLine = 64;

struct alignas(kLine) Counter {
  std::atomic<std::uint64_t> value;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

// The header is in the first pages; the counters of the local ranks follow it. The memory is zeroed at first.
struct SnapshotMemory::Header {
  std::uint64_t local_ranks;
  std::uint64_t payload_bytes;
  Counter freed;
  Counter urgent;
  Counter* copied() { return reinterpret_cast<Counter*>(this + 1); }
};

SnapshotMemory::Header& SnapshotMemory::header() const {
  return *reinterpret_cast<Header*>(memory_.data());
}

SharedMemory SnapshotMemory::create(std::size_t payload_bytes, int local_ranks) {
  const std::size_t header_bytes =
      whole_pages(sizeof(Header) + sizeof(Counter) * static_cast<std::size_t>(local_ranks));
  SharedMemory memory = SharedMemory::create_of_huge_pages("checkpoint", header_bytes + whole_pages(payload_bytes));
  auto* header = new (memory.data()) Header{};
  header->local_ranks = static_cast<std::uint64_t>(local_ranks);
  header->payload_bytes = whole_pages(payload_bytes);
  for (int rank = 0; rank < local_ranks; ++rank) new (header->copied() + rank) Counter{};
  return memory;
}

SnapshotMemory::SnapshotMemory(SharedMemory memory, int local_ranks) : memory_(std::move(memory)) {
  const bool fits = memory_.size() >= kPage && header().local_ranks == static_cast<std::uint64_t>(local_ranks) &&
                    header().payload_bytes < memory_.size();
  if (!fits) throw SystemError("the memory for checkpoints was made by another version of dtrain", EINVAL);
}

void SnapshotMemory::prefault(std::size_t offset, std::size_t bytes) const {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14; absent from older headers
  if (offset > this->bytes() || bytes > this->bytes() - offset) {
    throw SystemError("cannot map bytes past the end of the memory for checkpoints", EINVAL);
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = memory_.size() - this->bytes() + offset;
  const std::size_t begin = first / page * page;
  const std::size_t end = (first + bytes + page - 1) / page * page;
  if (begin == end || ::madvise(memory_.data() + begin, end - begin, kPopulateWrite) == 0) return;
  // Without this call, a read maps a page of shared memory, also for writing.
  for (std::size_t at = begin; at < end; at += page) {
    static_cast<void>(*static_cast<const volatile std::byte*>(memory_.data() + at));
  }
}

std::byte* SnapshotMemory::data() const {
  return memory_.data() + memory_.size() - bytes();
}

std::size_t SnapshotMemory::bytes() const {
  return header().payload_bytes;
}

int SnapshotMemory::fd() const {
  return memory_.fd();
}

int SnapshotMemory::local_ranks() const {
  return local_ranks_of(memory_);
}

int SnapshotMemory::local_ranks_of(const SharedMemory& memory) {
  return memory.size() < kPage ? 0 : static_cast<int>(reinterpret_cast<const Header*>(memory.data())->local_ranks);
}

void SnapshotMemory::mark_copied(int local_rank, std::uint64_t number) const {
  header().copied()[local_rank].value.store(number, std::memory_order_release);
}

bool SnapshotMemory::all_copied(std::uint64_t number) const {
  for (int rank = 0; rank < local_ranks(); ++rank) {
    if (header().copied()[rank].value.load(std::memory_order_acquire) < number) return false;
  }
  return true;
}

void SnapshotMemory::mark_free(std::uint64_t number) const {
  header().freed.value.store(number, std::memory_order_release);
}

std::uint64_t SnapshotMemory::freed() const {
  return header().freed.value.load(std::memory_order_acquire);
}

void SnapshotMemory::mark_urgent(std::uint64_t number) const {
  header().urgent.value.store(number, std::memory_order_seq_cst);
}

bool SnapshotMemory::is_urgent(std::uint64_t number) const {
  return header().urgent.value.load(std::memory_order_seq_cst) >= number;
}

}  // namespace dtrain::checkpoints
