#include "dtrain/base/shared_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

// What a peer could shrink later would be a SIGBUS here.
TEST(SharedMemory, WhatCouldBeShrunkIsNotMapped) {
  const auto made_with = [](int seals) {
    UniqueFd fd(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (::ftruncate(fd.get(), 4096) != 0) throw SystemError("ftruncate", errno);
    if (seals != 0 && ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) throw SystemError("seal", errno);
    return fd;
  };
  const auto refused = [](UniqueFd fd) -> std::string {
    try {
      (void)SharedMemory::map(std::move(fd));
    } catch (const SystemError& error) {
      return error.what();
    }
    return "mapped";
  };
  const auto why = testing::HasSubstr("no F_SEAL_SHRINK and F_SEAL_GROW");
  EXPECT_THAT(refused(made_with(0)), why);
  EXPECT_THAT(refused(made_with(F_SEAL_GROW)), why);
  EXPECT_THAT(refused(made_with(F_SEAL_SHRINK)), why);
  EXPECT_EQ(refused(made_with(F_SEAL_SHRINK | F_SEAL_GROW)), "mapped");
  std::FILE* const file = std::tmpfile();
  ASSERT_TRUE(file);
  ASSERT_EQ(::ftruncate(::fileno(file), 4096), 0);
  EXPECT_THAT(refused(duplicate(::fileno(file))), why) << "a file can be shrunk by whoever may write it";
  std::fclose(file);
}

TEST(SharedMemory, IsReservedPartByPart) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const SharedMemory memory = SharedMemory::create_unreserved("test", 4 * page);
  const auto reserved = [&] {
    struct stat info {};
    EXPECT_EQ(::fstat(memory.fd(), &info), 0);
    return static_cast<std::size_t>(info.st_blocks) * 512;
  };
  EXPECT_EQ(memory.size(), 4 * page);
  EXPECT_EQ(reserved(), 0u);
  memory.reserve(page, 2 * page);
  EXPECT_EQ(reserved(), 2 * page);
  EXPECT_THROW(memory.reserve(4 * page, page), SystemError) << "it does not grow";
  EXPECT_THROW(SharedMemory::create_unreserved("huge", std::size_t{1} << 50), SystemError);
}

TEST(SharedMemory, StaysMappedWithoutItsDescriptor) {
  SharedMemory memory = SharedMemory::create("test", 4096);
  const SharedMemory other = SharedMemory::map(duplicate(memory.fd()));
  memory.close_descriptor();
  EXPECT_EQ(memory.fd(), -1);
  memory.data()[5] = std::byte{6};
  EXPECT_EQ(other.data()[5], std::byte{6});
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
