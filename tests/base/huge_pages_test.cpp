#include "dtrain/base/huge_pages.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/shared_memory.h"

namespace dtrain {
namespace {

constexpr std::size_t kPage = 4096;

// The bytes of the file that have pages.
std::size_t bytes_there(int file) {
  struct stat info {};
  if (::fstat(file, &info) != 0) throw SystemError("fstat", errno);
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

// A file in memory, mapped from a huge page on.
struct Mapped {
  explicit Mapped(std::size_t size) : file(::memfd_create("test", MFD_CLOEXEC)), bytes{reserve_addresses(size), size} {
    if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) throw SystemError("ftruncate", errno);
    void* const place = ::mmap(bytes.data(), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0);
    if (place == MAP_FAILED) throw SystemError("mmap", errno);
  }
  ~Mapped() { ::munmap(bytes.data(), bytes.size()); }
  Mapped& operator=(Mapped&&) = delete;

  UniqueFd file;
  std::span<std::byte> bytes;
};

TEST(HugePages, ReservedAddressesBeginAtAHugePage) {
  std::byte* const place = reserve_addresses(3 * kPage + 1);
  ASSERT_NE(place, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % kHugePage, 0u);
  EXPECT_EQ(::munmap(place, 4 * kPage), 0);
}

TEST(HugePages, OnlyWholeOnesOfThePartAreTaken) {
  const Mapped memory(5 * kHugePage);
  take_huge_pages(memory.file.get(), kPage, memory.bytes.subspan(kPage, 3 * kHugePage));
  // A kernel without MADV_COLLAPSE has made the first pages alone.
  const std::size_t there = bytes_there(memory.file.get());
  EXPECT_TRUE(there == 2 * kHugePage || there <= 2 * kPage) << there;
  EXPECT_TRUE(std::all_of(memory.bytes.begin(), memory.bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(HugePages, WhatIsSmallerOrLiesUnevenlyStaysAsItIs) {
  const Mapped memory(3 * kHugePage);
  take_huge_pages(memory.file.get(), 0, memory.bytes.first(kHugePage - kPage));
  take_huge_pages(memory.file.get(), kPage, memory.bytes.subspan(kPage, kHugePage));
  take_huge_pages(memory.file.get(), 0,
                  memory.bytes.subspan(kPage, 2 * kHugePage));  // mapped elsewhere than the file says
  EXPECT_EQ(bytes_there(memory.file.get()), 0u);
}

TEST(HugePages, AFileThatCannotGrowEndsNothing) {
  const Mapped memory(2 * kHugePage);
  const UniqueFd reader(::open(("/proc/self/fd/" + std::to_string(memory.file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  take_huge_pages(reader.get(), 0, memory.bytes);  // fallocate() fails
  EXPECT_EQ(bytes_there(memory.file.get()), 0u);
}

TEST(HugePages, AReservedPartIsWholeAndNoMore) {
  const SharedMemory memory = SharedMemory::create_unreserved("test", 8 * kHugePage);
  memory.reserve(3 * kPage, 4 * kHugePage);
  EXPECT_EQ(bytes_there(memory.fd()), 4 * kHugePage);
  memory.reserve(3 * kPage + 4 * kHugePage, kHugePage);
  EXPECT_EQ(bytes_there(memory.fd()), 5 * kHugePage);
  const auto part = memory.bytes().subspan(3 * kPage, 5 * kHugePage);
  EXPECT_TRUE(std::all_of(part.begin(), part.end(), [](std::byte b) { return b == std::byte{0}; }));
  // Another mapping sees what is written, and a part that is given back is zeros again.
  const SharedMemory other = SharedMemory::map(duplicate(memory.fd()));
  std::fill(part.begin(), part.end(), std::byte{7});
  EXPECT_EQ(other.data()[3 * kHugePage], std::byte{7});
  ASSERT_EQ(::madvise(memory.data() + kHugePage + kPage, kHugePage, MADV_REMOVE), 0);
  EXPECT_EQ(other.data()[kHugePage + kPage], std::byte{0});
  EXPECT_EQ(other.data()[2 * kHugePage + kPage], std::byte{7});
}

}  // namespace
}  // namespace dtrain
