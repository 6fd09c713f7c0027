#include "dtrain/base/file.h"

#include <cerrno>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"

namespace dtrain {
namespace {

using testing::HasSubstr;

std::size_t entries_in(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(ReadFile, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string content("a\0b\n\xff", 5);
  write_file_atomic(folder / "x", content);
  EXPECT_EQ(read_file(folder / "x"), content);
  write_file_atomic(folder / "x", "");
  EXPECT_EQ(read_file(folder / "x"), "");
}

TEST(ReadFile, ReadsFilesThatHaveNoSize) {
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Name:"));
}

TEST(ReadFile, RefusesMoreThanTheLimit) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "x", "12345");
  EXPECT_EQ(read_file(folder / "x", 5), "12345");
  EXPECT_THROW(read_file(folder / "x", 4), DataError);
  EXPECT_THROW(read_file("/dev/zero", 1000), DataError);
}

TEST(ReadFile, NamesTheFileThatIsMissing) {
  try {
    read_file("/no/such/file");
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_STREQ(error.what(), "cannot read /no/such/file: No such file or directory");
    EXPECT_EQ(error.code(), ENOENT);
  }
}

TEST(WriteFileAtomic, ReplacesAndLeavesNothingBeside) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "x", "old");
  struct stat before {};
  ASSERT_EQ(::stat((folder / "x").c_str(), &before), 0);
  write_file_atomic(folder / "x", "new");
  struct stat after {};
  ASSERT_EQ(::stat((folder / "x").c_str(), &after), 0);
  EXPECT_EQ(read_file(folder / "x"), "new");
  EXPECT_NE(before.st_ino, after.st_ino) << "must be a rename, not a write in place";
  EXPECT_EQ(entries_in(folder.path()), 1u);
}

TEST(WriteFileAtomic, AFailureLeavesTheOldContentAlone) {
  const TemporaryFolder folder;
  make_folder(folder / "taken/full");
  EXPECT_THROW(write_file_atomic(folder / "taken", "x"), SystemError);
  EXPECT_TRUE(std::filesystem::is_directory(folder / "taken/full"));
  EXPECT_EQ(entries_in(folder.path()), 1u) << "the temporary file must be gone";
  EXPECT_THROW(write_file_atomic(folder / "no/such/folder/x", "x"), SystemError);
}

// As root a rename would put a file in the place of the device.
TEST(WriteFileAtomic, WritesIntoPipesAndDevices) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  write_file_atomic(pipe, "content");
  char text[16];
  EXPECT_EQ(::read(reader.get(), text, sizeof text), 7);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(entries_in(folder.path()), 1u);
  const std::filesystem::path unread = folder / "unread";
  ASSERT_EQ(::mkfifo(unread.c_str(), 0600), 0);
  EXPECT_THROW(write_file_atomic(unread, "content"), SystemError) << "nobody reads it";
  std::filesystem::remove(unread);
  EXPECT_THROW(write_file_atomic("/dev/full", "content"), SystemError);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST(MakeFolder, MakesParentsAndAcceptsWhatIsThere) {
  const TemporaryFolder folder;
  make_folder(folder / "a/b/c");
  make_folder(folder / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
  write_file_atomic(folder / "file", "");
  EXPECT_THROW(make_folder(folder / "file"), SystemError);
  EXPECT_THROW(make_folder(folder / "file/below"), SystemError);
}

}  // namespace
}  // namespace dtrain
