#include <cerrno>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

using testing::HasSubstr;

TEST(LineAppender, AppendsAndEndsLines) {
  const TemporaryFolder folder;
  LineAppender appender(folder / "log");
  appender.append("one\n");
  appender.append("two");
  appender.append("three\nfour\n");
  appender.append("");
  EXPECT_EQ(read_file(folder / "log"), "one\ntwo\nthree\nfour\n\n");
}

TEST(LineAppender, ContinuesAFileAndClosesItsTornLine) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "log", "whole\ntor");
  LineAppender appender(folder / "log");
  appender.append("next\n");
  EXPECT_EQ(read_file(folder / "log"), "whole\ntor\nnext\n");
  LineAppender again(folder / "log");
  again.append("last\n");
  EXPECT_EQ(read_file(folder / "log"), "whole\ntor\nnext\nlast\n");
}

TEST(LineAppender, LinesOfSeveralWritersAreNeverMixed) {
  const TemporaryFolder folder;
  constexpr int kLines = 500;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      LineAppender appender(folder / "log");
      const std::string line(static_cast<std::size_t>(50 + 700 * writer), static_cast<char>('a' + writer));
      for (int i = 0; i < kLines; ++i) appender.append(line);
    });
  }
  for (std::thread& writer : writers) writer.join();
  std::map<std::string, int> counts;
  for (const std::string& line : split(read_file(folder / "log"), '\n')) ++counts[line];
  EXPECT_EQ(counts.size(), 5u) << "four kinds of line, and nothing after the last newline";
  for (int writer = 0; writer < 4; ++writer) {
    const std::string line(static_cast<std::size_t>(50 + 700 * writer), static_cast<char>('a' + writer));
    EXPECT_EQ(counts[line], kLines);
  }
}

// Appends until the file cannot grow; returns the error's text. Every line is `line`.
std::string fill(const std::filesystem::path& path, const std::string& lines) {
  LineAppender appender(path);
  for (int i = 0; i < 100'000; ++i) {
    try {
      appender.append(lines);
    } catch (const SystemError& error) {
      // What was torn is gone: the next try starts on a fresh line and fails the same way.
      EXPECT_THROW(appender.append(lines), SystemError);
      return std::string(error.what()) + " | " + error.remedy();
    }
  }
  return "never full";
}

void expect_whole_lines(const std::string& content, const std::string& line) {
  ASSERT_FALSE(content.empty());
  EXPECT_EQ(content.size() % (line.size() + 1), 0u);
  EXPECT_EQ(content.back(), '\n');
  for (std::size_t at = 0; at < content.size(); at += line.size() + 1) ASSERT_EQ(content.substr(at, line.size()), line);
}

TEST(LineAppender, ALimitOfTheFileSizeLeavesWholeLines) {
  const TemporaryFolder folder;
  const std::string line(77, 'x');
  // In a process of its own: the limit must not catch what else this one writes.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10'000, 10'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = fill(folder / "log", line + "\n" + line + "\n" + line + "\n");
    ::_exit(message.find("cannot append to") == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const std::string content = read_file(folder / "log");
  expect_whole_lines(content, line);
  EXPECT_EQ(content.size(), 10'000 / 78 * 78u) << "the lines that fitted stay";
}

class FullDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (::mount("dtrain-test", folder_.path().c_str(), "tmpfs", 0, "size=64k") != 0)
      GTEST_SKIP() << "mounting is not allowed here";
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST_F(FullDisk, LeavesWholeLinesAndSaysWhatToDo) {
  const std::string line(999, 'y');
  const std::string message = fill(folder_ / "log", line);
  EXPECT_THAT(message, HasSubstr("cannot append to " + (folder_ / "log").string() + ": No space left on device"));
  EXPECT_THAT(message, HasSubstr("free space on the file system of"));
  expect_whole_lines(read_file(folder_ / "log"), line);
}

TEST_F(FullDisk, ContinuesWhenThereIsSpaceAgain) {
  const std::string line(999, 'y');
  write_file_atomic(folder_ / "other", std::string(8192, 'o'));
  LineAppender appender(folder_ / "log");
  int appended = 0;
  try {
    for (;; ++appended) appender.append(line);
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code(), ENOSPC);
  }
  std::filesystem::remove(folder_ / "other");
  appender.append(line);
  const std::string content = read_file(folder_ / "log");
  expect_whole_lines(content, line);
  EXPECT_EQ(content.size(), static_cast<std::size_t>(appended + 1) * 1000);
}

TEST_F(FullDisk, AnAtomicWriteKeepsTheOldFile) {
  write_file_atomic(folder_ / "x", "old");
  EXPECT_THROW(write_file_atomic(folder_ / "x", std::string(1 << 20, 'n')), SystemError);
  EXPECT_EQ(read_file(folder_ / "x"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

}  // namespace
}  // namespace dtrain
