#include "dtrain/rank/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "dtrain/base/error.h"
#include "run_harness.h"

namespace dtrain::rank {
namespace {

using testing::HasSubstr;

// Runs are made under the current folder: each test has one of its own.
class InFolder : public testing::Test {
 protected:
  InFolder() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~InFolder() override { fs::current_path(before_); }
  std::string error_of(const std::string& run) {
    try {
      find_run(run);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  TemporaryFolder folder_;

 private:
  fs::path before_;
};
using RunFolderTest = InFolder;

TEST_F(RunFolderTest, IsNumberedAndHoldsTheExperiment) {
  const RunFolder first = create_run_folder("", "Fashion MNIST (CNN)", "name: x\n");
  EXPECT_EQ(first.path.filename(), "0001-fashion-mnist-cnn");
  EXPECT_TRUE(first.path.is_absolute());
  EXPECT_EQ(slurp(first.experiment()), "name: x\n");
  EXPECT_EQ(first.log(7).filename(), "rank-0007.log");
  EXPECT_EQ(create_run_folder("", "x", "").path.filename(), "0002-x");
  fs::create_directory(folder_.path() / "runs" / "0041-old");
  EXPECT_EQ(create_run_folder("", "../..", "").path.filename(), "0042-run");
}

TEST_F(RunFolderTest, ProcessesThatStartTogetherGetTheirOwn) {
  constexpr int kProcesses = 16;
  for (int i = 0; i < kProcesses; ++i) {
    if (::fork() == 0) {
      create_run_folder("", "run " + std::to_string(i), "");
      ::_exit(0);
    }
  }
  for (int status = 0; ::wait(&status) > 0;) EXPECT_EQ(status, 0);
  std::set<std::string> numbers;
  for (const auto& entry : fs::directory_iterator("runs")) {
    if (entry.is_directory()) numbers.insert(entry.path().filename().string().substr(0, 4));
  }
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(kProcesses));
  EXPECT_EQ(*numbers.rbegin(), "0016");
}

TEST_F(RunFolderTest, AFolderThatHoldsARunIsRefused) {
  create_run_folder("here", "x", "first");
  try {
    create_run_folder("here", "x", "second");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr((folder_.path() / "here").string() + " already holds a run"));
  }
  EXPECT_EQ(slurp("here/experiment.yaml"), "first");
  fs::create_directory("empty");
  EXPECT_NO_THROW(create_run_folder("empty", "x", ""));
}

TEST_F(RunFolderTest, IsFoundByPathNameAndNumber) {
  const auto first = create_run_folder("", "net", "").path;
  const auto second = create_run_folder("", "net", "").path;
  const auto third = create_run_folder("", "other", "").path;
  EXPECT_EQ(find_run("runs/0001-net").path, first);
  EXPECT_EQ(find_run(first).path, first);
  EXPECT_EQ(find_run("0001-net").path, first);
  EXPECT_EQ(find_run("1").path, first);
  EXPECT_EQ(find_run("0003").path, third);
  EXPECT_EQ(find_run("net").path, second) << "the latest of that name";
  EXPECT_EQ(find_run("run:1").path, first);
  EXPECT_EQ(find_run("run:net").path, second);
  EXPECT_THAT(error_of("run:9"), HasSubstr("no run '9'"));
}

TEST_F(RunFolderTest, WithoutANameOneThatRunsGoesBeforeOneThatIsQueued) {
  EXPECT_THROW(newest_running(), ConfigError);
  const SystemClock clock;
  std::vector<RunFolder> runs;
  for (const char* name : {"first", "second", "third"}) runs.push_back(create_run_folder("", name, ""));
  const auto write = [&](std::size_t run, const std::string& event) {
    EventLog(runs[run].events(), clock, -1, "node").write(event, Json::object());  // by this process, which lives
  };
  for (const std::size_t run : {0, 1, 2}) write(run, "submitted");
  EXPECT_EQ(newest_running().path, runs[2].path) << "all are queued";
  write(0, "run_started");
  EXPECT_EQ(newest_running().path, runs[0].path);
  write(1, "run_started");
  EXPECT_EQ(newest_running().path, runs[1].path);
  write(1, "run_ended");
  EXPECT_EQ(newest_running().path, runs[0].path);
}

TEST_F(RunFolderTest, AnUnknownRunNamesTheNearest) {
  EXPECT_THAT(error_of("7"), HasSubstr("there is no run under"));
  create_run_folder("", "fashion-mnist", "");
  create_run_folder("", "synthetic", "");
  EXPECT_THAT(error_of("fashion-mnits"), HasSubstr("did you mean 0001-fashion-mnist?"));
  EXPECT_THAT(error_of("0002-syntetic"), HasSubstr("did you mean 0002-synthetic?"));
  EXPECT_THAT(error_of("9"), HasSubstr("no run '9'"));
  for (const char* far : {"9", "nope"}) EXPECT_THAT(error_of(far), HasSubstr("; the newest is 0002-synthetic")) << far;
  fs::create_directory("folder");
  EXPECT_THAT(error_of("./folder"), HasSubstr("not a run's folder"));
}

TEST_F(RunFolderTest, EventsHaveTheirFields) {
  const SystemClock clock;
  EventLog log("events.jsonl", clock, 3, "node");
  log.write("something", {{"step", 4}});
  EventLog launcher("events.jsonl", clock, -1, "node");
  launcher.write("rank_started", {{"rank", 1}, {"pid", 77}});
  const auto lines = read_lines("events.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["event"], "something");
  EXPECT_EQ(lines[0]["rank"], 3);
  EXPECT_EQ(lines[0]["pid"], ::getpid());
  EXPECT_EQ(lines[0]["host"], "node");
  EXPECT_EQ(lines[0]["step"], 4);
  EXPECT_EQ(lines[0]["time"].get<std::string>().back(), 'Z');
  EXPECT_EQ(lines[1]["pid"], 77);
}

}  // namespace
}  // namespace dtrain::rank
