#include "dtrain/base/huge_pages.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace dtrain {
namespace {

constexpr int kCollapse = 25;                             // MADV_COLLAPSE, Linux 6.1; absent from older headers
constexpr std::size_t kHugePagesAtOnce = 16 * kHugePage;  // bytes
constexpr auto kPatienceWithKernel = std::chrono::milliseconds(200);  // ten times the time with free memory

constexpr std::size_t up_to_huge_page(std::size_t offset) {
  return (offset + kHugePage - 1) / kHugePage * kHugePage;
}

// The kernel needs one present page in each huge page. Reading the mapping would make one, too, but would be a SIGBUS
// where a tmpfs is full.
bool make_first_page(int file, std::size_t offset) {
  static const off_t page = ::sysconf(_SC_PAGESIZE);
  return TEMP_FAILURE_RETRY(::fallocate(file, 0, static_cast<off_t>(offset), page)) == 0;
}

}  // namespace

void take_huge_pages(int file, std::size_t offset, std::span<std::byte> memory) {
  const std::size_t first = up_to_huge_page(offset), last = (offset + memory.size()) / kHugePage * kHugePage;
  if (first >= last) return;
  std::byte* const data = memory.data() + (first - offset);
  if (reinterpret_cast<std::uintptr_t>(data) % kHugePage != 0) return;
  for (std::size_t begin = first; begin < last; begin += kHugePagesAtOnce) {
    const std::size_t end = std::min(begin + kHugePagesAtOnce, last);
    for (std::size_t at = begin; at < end; at += kHugePage) {
      if (!make_first_page(file, at)) return;
    }
    const auto began = std::chrono::steady_clock::now();
    if (::madvise(data + (begin - first), end - begin, kCollapse) != 0) return;
    if (std::chrono::steady_clock::now() - began > kPatienceWithKernel) return;
  }
}

std::byte* reserve_addresses(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t whole = (bytes + page - 1) / page * page, room = whole + kHugePage;
  void* const place = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(place);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  if (before + whole < room) ::munmap(begin + before + whole, room - before - whole);
  return begin + before;
}

}  // namespace dtrain
