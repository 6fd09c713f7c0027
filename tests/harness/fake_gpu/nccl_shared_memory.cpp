#include "nccl_shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace dtrain::test::fake_gpu {

namespace {

constexpr std::size_t kRing = std::size_t{2} << 20;
constexpr std::size_t kHeaderRoom = std::size_t{64} << 10;

}  // namespace

SharedMemory::SharedMemory(const std::string& name, int ranks, int rank)
    : name_("/" + name), ranks_(ranks), rank_(rank), bytes_(kHeaderRoom + kRing * static_cast<std::size_t>(ranks)) {
  static_assert(sizeof(Header) <= kHeaderRoom && std::atomic<std::uint64_t>::is_always_lock_free);
  const auto fail = [&](const char* call) {
    throw std::system_error(errno, std::generic_category(), std::string("fake NCCL: ") + call + " of " + name_);
  };
  const int file = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) fail("shm_open");
  struct stat now {};
  if (::fstat(file, &now) != 0 ||
      (now.st_size < static_cast<off_t>(bytes_) && ::ftruncate(file, static_cast<off_t>(bytes_)) != 0)) {
    ::close(file);
    fail("ftruncate");
  }
  void* const data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  ::close(file);
  if (data == MAP_FAILED) fail("mmap");
  header_ = static_cast<Header*>(data);
  std::uint32_t theirs = 0;
  const bool alike = header_->ranks.compare_exchange_strong(theirs, static_cast<std::uint32_t>(ranks)) ||
                     theirs == static_cast<std::uint32_t>(ranks);
  const bool twice = header_->here[rank].exchange(1) != 0;
  if (alike && !twice) return;
  ::munmap(data, bytes_);
  throw std::runtime_error(alike ? "rank " + std::to_string(rank) + " is there twice"
                                 : "this rank has " + std::to_string(ranks) + " ranks, another has " +
                                       std::to_string(theirs));
}

SharedMemory::~SharedMemory() {
  if (named_) ::shm_unlink(name_.c_str());
  ::munmap(header_, bytes_);
}

bool SharedMemory::all_here() {
  if (!std::all_of(header_->here, header_->here + ranks_, [](const auto& one) { return one != 0; })) return false;
  if (named_) ::shm_unlink(name_.c_str());  // of all ranks, the first one does it
  named_ = false;
  return true;
}

void SharedMemory::leave() {
  header_->left[rank_] = 1;
}

bool SharedMemory::all_left() const {
  return std::all_of(header_->left, header_->left + ranks_, [](const auto& one) { return one != 0; });
}

bool SharedMemory::all_came_to_captured() const {
  const std::uint32_t own = header_->captured[rank_];
  return std::all_of(header_->captured, header_->captured + ranks_, [own](const auto& one) { return one >= own; });
}

std::byte* SharedMemory::ring(int of) const {
  return reinterpret_cast<std::byte*>(header_) + kHeaderRoom + kRing * static_cast<std::size_t>(of);
}

std::size_t SharedMemory::write(const void* data, std::size_t bytes) {
  Ring& own = header_->rings[rank_];
  const std::uint64_t written = own.written.load(std::memory_order_relaxed);
  std::uint64_t slowest = written;
  for (int r = 0; r < ranks_; ++r) slowest = std::min(slowest, own.read[r].load(std::memory_order_acquire));
  const std::size_t taken = std::min<std::size_t>(bytes, kRing - (written - slowest));
  const std::size_t at = written % kRing;
  const std::size_t first = std::min(taken, kRing - at);
  std::memcpy(ring(rank_) + at, data, first);
  std::memcpy(ring(rank_), static_cast<const std::byte*>(data) + first, taken - first);
  own.written.store(written + taken, std::memory_order_release);
  return taken;
}

std::size_t SharedMemory::available(int from) const {
  const Ring& theirs = header_->rings[from];
  return theirs.written.load(std::memory_order_acquire) - theirs.read[rank_].load(std::memory_order_relaxed);
}

void SharedMemory::read(int from, void* into, std::size_t bytes) {
  Ring& theirs = header_->rings[from];
  const std::uint64_t position = theirs.read[rank_].load(std::memory_order_relaxed);
  const std::size_t at = position % kRing;
  const std::size_t first = std::min(bytes, kRing - at);
  std::memcpy(into, ring(from) + at, first);
  std::memcpy(static_cast<std::byte*>(into) + first, ring(from), bytes - first);
  theirs.read[rank_].store(position + bytes, std::memory_order_release);
}

}  // namespace dtrain::test::fake_gpu
