// Heap memory that is aligned for every backend and zeroed. Large blocks ask for huge pages: their first use, and their
// use after release_pages(), takes a fault for 2 MiB instead of one for 4 KiB.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace dtrain::comm {

inline std::shared_ptr<std::byte> allocate_zeroed(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::size_t kHugePage = 2 << 20;
  const std::size_t alignment = bytes < 2 * kHugePage ? page : kHugePage;
  const std::size_t size = (bytes + page) / page * page;
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
  if (alignment == kHugePage) static_cast<void>(::madvise(memory, size, MADV_HUGEPAGE));
  std::memset(memory, 0, size);
  return {static_cast<std::byte*>(memory), [](std::byte* data) { std::free(data); }};
}

}  // namespace dtrain::comm
