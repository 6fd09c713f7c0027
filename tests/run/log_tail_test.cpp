#include "dtrain/rank/screen.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "run_harness.h"

namespace dtrain::rank {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LogTailTest : public testing::Test {
 protected:
  void append(const std::string& text, const std::string& name = "log") {
    std::ofstream(folder_.path() / name, std::ios::app) << text;
  }
  std::vector<std::string> poll() {
    lines_.clear();
    tail_.poll(sink_);
    return lines_;
  }
  TemporaryFolder folder_;
  LogTail tail_;
  std::vector<std::string> lines_;
  LogTail::Sink sink_ = [this](int rank, std::string_view line) {
    lines_.push_back(std::to_string(rank) + ":" + std::string(line));
  };
};

TEST_F(LogTailTest, HandsOverWholeLinesOnce) {
  tail_.add(3, folder_.path() / "log");
  EXPECT_THAT(poll(), IsEmpty()) << "not there yet";
  append("one\ntw");
  EXPECT_THAT(poll(), ElementsAre("3:one"));
  append("o\n\nthree");
  EXPECT_THAT(poll(), ElementsAre("3:two", "3:"));
  EXPECT_THAT(poll(), IsEmpty());
  lines_.clear();
  tail_.finish(sink_);
  EXPECT_THAT(lines_, ElementsAre("3:three"));
}

TEST_F(LogTailTest, FollowsSeveralFilesAndLongLines) {
  tail_.add(0, folder_.path() / "log");
  tail_.add(1, folder_.path() / "other");
  append(std::string(200'000, 'x') + "\n");
  append("short\n", "other");
  poll();
  std::size_t length = 0;
  for (const std::string& line : lines_) length += line[0] == '0' ? line.size() - 2 : 0;
  EXPECT_EQ(length, 200'000u);
  EXPECT_EQ(lines_.back(), "1:short");
}

TEST_F(LogTailTest, LastLines) {
  EXPECT_THAT(last_lines(folder_.path() / "none", 3), IsEmpty());
  append("");
  EXPECT_THAT(last_lines(folder_.path() / "log", 3), IsEmpty());
  append("1\n2\n3\n4");
  EXPECT_THAT(last_lines(folder_.path() / "log", 3), ElementsAre("2", "3", "4"));
  append("\n" + std::string(100'000, 'y') + "\nend\n");
  EXPECT_THAT(last_lines(folder_.path() / "log", 1), ElementsAre("end"));
}

TEST_F(LogTailTest, ATornLineIsEnded) {
  append("whole\ntorn");
  end_torn_line(folder_.path() / "log");
  EXPECT_EQ(slurp(folder_.path() / "log"), "whole\ntorn\n");
  end_torn_line(folder_.path() / "log");
  EXPECT_EQ(slurp(folder_.path() / "log"), "whole\ntorn\n");
}

TEST_F(LogTailTest, ATornLineIsTakenAwayWhereNoNewlineFits) {
  const fs::path disk = folder_.path() / "disk";
  fs::create_directory(disk);
  if (::mount("dtrain-test", disk.c_str(), "tmpfs", 0, "size=8k") != 0) GTEST_SKIP() << "only root can mount a tmpfs";
  {
    const UniqueFd log(::open((disk / "log").c_str(), O_WRONLY | O_CREAT, 0600));
    const std::string text = "whole\n" + std::string(10'000, 'x');
    EXPECT_LT(::write(log.get(), text.data(), text.size()), 10'000) << "the disk is smaller";
  }
  end_torn_line(disk / "log");
  EXPECT_EQ(slurp(disk / "log"), "whole\n");
  ::umount2(disk.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace dtrain::rank
