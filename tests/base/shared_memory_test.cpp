#include "dtrain/base/shared_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain {
namespace {

// As the kernel lists them: "rw-s".
std::string permissions_at(const std::byte* address) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (std::stoull(line, nullptr, 16) == reinterpret_cast<std::uintptr_t>(address))
      return line.substr(line.find(' ') + 1, 4);
  }
  return "not mapped";
}

TEST(SharedMemory, IsZeroedAndWholePages) {
  const SharedMemory memory = SharedMemory::create("test", 5000);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory.size() % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), 0u);
  EXPECT_GE(memory.size(), 5000u);
  EXPECT_TRUE(std::all_of(memory.bytes().begin(), memory.bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(SharedMemory::create("empty", 0));
}

TEST(SharedMemory, IsSeenByAnotherMappingAndAnotherProcess) {
  const SharedMemory memory = SharedMemory::create("test", 4096);
  const SharedMemory other = SharedMemory::map(duplicate(memory.fd()));
  EXPECT_EQ(other.size(), memory.size());
  EXPECT_NE(other.data(), memory.data());
  memory.data()[17] = std::byte{42};
  EXPECT_EQ(other.data()[17], std::byte{42});

  const pid_t child = ::fork();
  if (child == 0) {
    other.data()[18] = std::byte{43};
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(memory.data()[18], std::byte{43});
}

TEST(SharedMemory, OutlivesItsCreatorAsLongAsItIsMapped) {
  SharedMemory creator = SharedMemory::create("test", 4096);
  const SharedMemory other = SharedMemory::map(duplicate(creator.fd()));
  creator.data()[0] = std::byte{1};
  creator = SharedMemory();
  EXPECT_FALSE(creator);
  EXPECT_EQ(other.data()[0], std::byte{1});
}

TEST(SharedMemory, CannotBeShrunkUnderThoseWhoMapIt) {
  const SharedMemory memory = SharedMemory::create("test", 4096);
  EXPECT_NE(::ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(::ftruncate(memory.fd(), 1 << 20), 0);
}

TEST(SharedMemory, MayBeMappedForReadingAlone) {
  const SharedMemory memory = SharedMemory::create("test", 4096);
  memory.data()[0] = std::byte{9};
  const SharedMemory reader = SharedMemory::map(duplicate(memory.fd()), false);
  EXPECT_EQ(reader.data()[0], std::byte{9});
  EXPECT_EQ(permissions_at(reader.data()), "r--s");
  EXPECT_EQ(permissions_at(memory.data()), "rw-s");
}

TEST(SharedMemory, MoreThanTheHostHasIsAnErrorNotAKill) {
  EXPECT_THROW(SharedMemory::create("huge", std::size_t{1} << 50), SystemError);
}

TEST(SharedMemory, WhatCannotBeMappedIsAnError) {
  EXPECT_THROW(SharedMemory::map(UniqueFd()), SystemError);
  EXPECT_THROW(SharedMemory::map(UniqueFd(::memfd_create("empty", MFD_CLOEXEC))), SystemError);
}

TEST(SharedMemory, MovesWithoutUnmapping) {
  SharedMemory first = SharedMemory::create("test", 4096);
  std::byte* data = first.data();
  SharedMemory second = std::move(first);
  EXPECT_EQ(second.data(), data);
  second.data()[1] = std::byte{1};
  SharedMemory third = SharedMemory::create("other", 4096);
  third = std::move(second);
  EXPECT_EQ(third.data()[1], std::byte{1});
}

}  // namespace
}  // namespace dtrain
