#include "launch/run_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "run_harness.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Works in a folder of its own.
class NextSteps : public testing::Test {
 protected:
  NextSteps() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~NextSteps() override { fs::current_path(before_); }
  rank::RunFolder run(const fs::path& path) const { return {fs::current_path() / path}; }
  TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(NextSteps, ARunIsNamedAsItIsTypedFromHere) {
  EXPECT_EQ(rank::reference_of(run("runs/0007-fashion-mnist")), "7");
  EXPECT_EQ(rank::reference_of(run("runs/12345-x")), "12345");
  EXPECT_EQ(rank::reference_of(run("runs/mine")), "runs/mine");
  EXPECT_EQ(rank::reference_of(run("other/0007-fashion-mnist")), "other/0007-fashion-mnist");
  EXPECT_EQ(rank::reference_of(run("my run")), "'my run'");
  EXPECT_EQ(rank::reference_of({"/elsewhere/0007-x"}), "/elsewhere/0007-x");
}

TEST_F(NextSteps, WhatIsReferredToIsFound) {
  for (const char* name : {"runs/0007-fashion-mnist", "mine"}) {
    fs::create_directories(run(name).path);
    std::ofstream(run(name).experiment()) << "name: x\n";
    EXPECT_EQ(rank::find_run(rank::reference_of(run(name))).path, run(name).path);
  }
}

TEST_F(NextSteps, ThreeLinesAndOneWhereNothingWasRecorded) {
  const std::string text = next_steps(run("runs/0007-x"), true);
  EXPECT_THAT(text, testing::StartsWith("next        " + rank::own_command() + " report 7 "));
  EXPECT_THAT(text, HasSubstr("\n            " + rank::own_command() + " analyze 7 "));
  EXPECT_THAT(text, HasSubstr("your own model: " DTRAIN_SOURCE_DIR "/examples/fashion_mnist/README.md\n"));
  EXPECT_EQ(count_of(text, "\n"), 3);
  EXPECT_THAT(next_steps(run("runs/0007-x"), false), Not(HasSubstr("report")));
}

TEST_F(NextSteps, TheProgramIsNamedAsItIsCalledFromHere) {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  EXPECT_EQ(rank::own_command(), program.string()) << "not below this folder, not in PATH";
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (program.parent_path().string() + ":" + path).c_str(), 1);
  EXPECT_EQ(rank::own_command(), program.filename());
  ::setenv("PATH", path.c_str(), 1);
  fs::current_path(program.parent_path().parent_path());
  EXPECT_EQ(rank::own_command(), program.parent_path().filename() / program.filename());
}

TEST(FirstLook, IsTheMeanOfTheRanksTheLargestShareFirst) {
  analysis::LiveView view;
  view.samples_per_s = 12345;
  view.ranks.resize(3);  // the third has not made a step
  view.ranks[0].recent.emplace().shares = {0.10, 0.60, 0.10, 0.20, 0, 0};
  view.ranks[1].recent.emplace().shares = {0.00, 0.80, 0.196, 0, 0, 0.004};
  EXPECT_EQ(first_look_text(view),
            "so far      12,345 samples/s; computing 70%, exchange 15%, waiting 10%, loading 5%");
}

TEST(FirstLook, IsEmptyWhereNothingIsRecorded) {
  EXPECT_THAT(first_look_text({}), IsEmpty());
  const SystemClock clock;
  EXPECT_THAT(first_look({"/nowhere"}, clock), IsEmpty());
}

}  // namespace
}  // namespace dtrain::launcher
