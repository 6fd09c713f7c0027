// The memory of Buffers outside of shared memory, and the return of a Buffer's pages to the kernel.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <span>

#include <sys/mman.h>

#include "dtrain/comm/communicator.h"

namespace dtrain::comm {

// Heap memory that is aligned for every backend and zeroed. Large blocks ask for huge pages: their first use, and their
// use after release_pages(), takes a fault for 2 MiB instead of one for 4 KiB.
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

// Open MPI (memory/patcher) and UCX intercept madvise() with the two kinds of advice below, so they drop their
// registrations with a network card (for faster sends) before the pages go. Memory that dtrain itself pins or registers
// for a device must not be released.
enum class PageKind {
  kPrivate,  // anonymous memory of this process
  kShared,   // a memfd that several processes map
};

// True if the kernel promises only memory that it has (vm.overcommit_memory: 2). The kernel would answer with SIGBUS if
// it could not provide a page of a memfd again.
inline bool is_overcommit_strict() {
  static const bool strict = [] {
    int mode = 0;
    return (std::ifstream("/proc/sys/vm/overcommit_memory") >> mode) && mode == 2;
  }();
  return strict;
}

// Returns the pages that lie wholly inside `memory`.
inline std::span<std::byte> whole_pages(std::span<std::byte> memory) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t begin = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + memory.size()) / page * page;
  if (end <= begin) return {};
  return memory.subspan(begin - address, end - begin);
}

// Gives the whole pages back to the kernel. They read as zeros until they are written again. Returns their bytes; 0 if
// the kernel refuses (locked memory).
inline std::size_t release_pages(std::span<std::byte> memory, PageKind kind) {
  const std::span<std::byte> pages = whole_pages(memory);
  if (pages.empty() || (kind == PageKind::kShared && is_overcommit_strict())) return 0;
  const int advice = kind == PageKind::kShared ? MADV_REMOVE : MADV_DONTNEED;
  return ::madvise(pages.data(), pages.size(), advice) == 0 ? pages.size() : 0;
}

// A Buffer of this process alone.
class PrivateBuffer : public Buffer {
 public:
  explicit PrivateBuffer(std::size_t bytes) : data_(allocate_zeroed(bytes)), bytes_(bytes) {}
  std::span<std::byte> bytes() override { return {data_.get(), bytes_}; }
  std::size_t release(std::size_t begin, std::size_t count) override {
    return release_pages(bytes().subspan(begin, count), PageKind::kPrivate);
  }

 protected:
  const std::shared_ptr<std::byte>& data() const { return data_; }

 private:
  std::shared_ptr<std::byte> data_;
  std::size_t bytes_;
};

}  // namespace dtrain::comm
