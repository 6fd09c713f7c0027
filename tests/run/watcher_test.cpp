// The watcher of a launch over ranks that are started in either way, with a full disk where events and logs go, and how
// it ends a process that hangs.
#include <gmock/gmock.h>

#include "dtrain/base/unix_socket.h"
#include "dtrain/host/processes.h"
#include "launch/attempts.h"
#include "launch/job_ranks.h"
#include "launch/local_ranks.h"
#include "launch/resizing.h"
#include "run_harness.h"

namespace dtrain::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kAlwaysFull = "/dev/full";

// Ranks that go on until an interrupt.
class EndlessRanks final : public WatchedRanks {
 public:
  void add_descriptors(std::vector<pollfd>&) const override {}
  void take(bool last) override { taken_last_ = last; }
  void judge() override {}
  void interrupt(const Interrupt& interrupt) override { interrupts.push_back(interrupt); }
  void end_what_hangs() override { ++looks; }
  bool all_joined() const override { return true; }
  bool has_failed() const override { return false; }
  bool all_ended() const override {
    if (looks == 1 && interrupts.empty()) ::raise(SIGINT);
    if (looks == 2 && interrupts.size() == 1) {
      ::raise(SIGTERM);
      ::raise(SIGHUP);  // of the same moment: counts as one with SIGTERM
    }
    return interrupts.size() == 2 || looks > 100;  // 100: an interrupt was lost
  }
  bool taken_last() const { return taken_last_; }

  std::vector<Interrupt> interrupts;
  int looks = 0;

 private:
  bool taken_last_ = false;
};

// A clock whose seconds pass fast.
class HurriedClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return now_ += std::chrono::seconds(10); }
  Nanoseconds wall() const override { return now_; }

 private:
  mutable Nanoseconds now_{0};
};

// Ranks of which none joins.
class AbsentRanks final : public WatchedRanks {
 public:
  void add_descriptors(std::vector<pollfd>&) const override {}
  void take(bool) override { ++looks_; }
  void judge() override {}
  void interrupt(const Interrupt&) override {}
  void end_what_hangs() override {}
  bool all_joined() const override { return false; }
  bool has_failed() const override { return false; }
  bool all_ended() const override { return looks_ > 8; }

 private:
  int looks_ = 0;
};

class Watching : public ::testing::Test {
 protected:
  Watching() {
    fs::create_directories(folder_.logs());
    plan_.command = {"/bin/sh", "-c", "echo hello; exit 3"};
    plan_.ranks = {{.rank = 0, .host = "here", .agent = "here"}};
  }
  std::string shown() const { return slurp(temporary_.path() / "screen"); }
  void expect_one_warning_of(const std::string& text) const {
    EXPECT_EQ(count_of(shown(), text), 1) << shown();
    EXPECT_THAT(shown(), HasSubstr("No space left on device"));
  }

  const TemporaryFolder temporary_;
  const rank::RunFolder folder_{temporary_.path() / "run"};
  const SystemClock clock_;
  const rank::Variables variables_;
  PlacedLaunch plan_;
  const UniqueFd screen_fd_{::open((temporary_.path() / "screen").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
  rank::Screen screen_{screen_fd_.get(), false, clock_};
  rank::EventLog full_file_{kAlwaysFull, clock_, -1, "here"};
  LaunchEvents events_{full_file_, screen_};
  rank::TrainerStatus status_{{}, {}};
  rank::LaunchSignals signals_;
  LaunchTask task_{temporary_.path() / "state", {.name = "test", .run_dir = temporary_.path() / "run"}, clock_};
  Resizing resizing_{{}, folder_, variables_, task_, full_file_};
  Standby standby_;
  const Attempt attempt_{{folder_, events_, screen_, status_, clock_, variables_, signals_, task_, resizing_},
                         plan_,
                         {},
                         {},
                         nullptr,
                         nullptr,
                         standby_};
};

TEST_F(Watching, AFullDiskOfEventsKeepsNoInterruptFromTheRanks) {
  EndlessRanks ranks;
  watch_ranks(attempt_, ranks);
  ASSERT_EQ(ranks.interrupts.size(), 2u);
  EXPECT_EQ(ranks.interrupts[0].why, "SIGINT");
  EXPECT_EQ(ranks.interrupts[0].count, 1);
  EXPECT_THAT(ranks.interrupts[1].signal, ::testing::AnyOf(SIGTERM, SIGHUP));
  EXPECT_EQ(ranks.interrupts[1].count, 2);
  EXPECT_TRUE(ranks.taken_last());
  expect_one_warning_of("warning: events are missing from the run's folder");
}

TEST_F(Watching, RanksThatDoNotJoinAreNamedOnceWithWhatTheyHaveToCall) {
  plan_.command = {"python3", "-m", "dtrain.rank", "/somewhere/train.py", "--"};
  const HurriedClock clock;
  AbsentRanks ranks;
  watch_ranks({{folder_, events_, screen_, status_, clock, variables_, signals_, task_, resizing_},
               plan_,
               {},
               {},
               nullptr,
               nullptr,
               standby_},
              ranks);
  EXPECT_EQ(count_of(shown(), "not every rank has joined the run within 30 s"), 1) << shown();
  EXPECT_THAT(shown(), HasSubstr("session = dtrain.init()"));
}

TEST_F(Watching, AFullDiskIsNotTheEndOfLocalRanks) {
  LocalRanks ranks(attempt_);
  ranks.start({.launcher_pid = ::getpid(), .run_dir = folder_.path, .agent_id = "here"}, variables_);
  watch_ranks(attempt_, ranks);
  const Outcome outcome = ranks.outcome();
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->cause, "rank 0 ended before it joined the run: exit status 3");
  EXPECT_THAT(outcome.failure->lines, ::testing::ElementsAre("hello"));
  expect_one_warning_of("warning: events are missing from the run's folder");
  EXPECT_THAT(shown(), HasSubstr("\nhello\n")) << "what the rank printed";
}

TEST_F(Watching, AFullDiskIsNotTheEndOfAJobsRanks) {
  fs::create_symlink(kAlwaysFull, folder_.logs() / "job.log");
  RankPlane plane("127.0.0.1", {.run_dir = folder_.path, .token = random_hex(16), .agents = {"here"}},
                  make_null_logger());
  const JobEnd end =
      watch_job(attempt_, plane,
                {.name = "job",
                 .command = {"/bin/sh", "-c", "echo hello; echo one >&2; echo two >&2; printf three >&2; exit 3"}});
  EXPECT_EQ(end.errors, "one\ntwo\nthree\n");
  EXPECT_EQ(end.status.code, 3);
  const Outcome outcome = judge_job(plan_, folder_, end, {}, "job");
  ASSERT_TRUE(outcome.failure);
  EXPECT_THAT(outcome.failure->cause, StartsWith("job ended before any rank joined the run: exit status 3"));
  EXPECT_THAT(shown(), HasSubstr("hello\n"));
  expect_one_warning_of("warning: events are missing from the run's folder");
  expect_one_warning_of("job.log: No space left on device");
}

constexpr Patience kSomePatience{2s, 4s};

TEST(HangingProcess, GetsSigtermAfterAWhile) {
  Process process = Process::start({.command = {"sleep", "1000"}});
  HangingProcess hanging;
  hanging.end(process, 1s, kSomePatience);
  EXPECT_FALSE(process.wait(50ms));
  hanging.end(process, 3s, kSomePatience);
  EXPECT_EQ(process.wait().signal, SIGTERM);
}

TEST(HangingProcess, IsKilledIfSigtermDoesNotEndIt) {
  Process process = Process::start({.command = {"sh", "-c", "trap '' TERM; exec sleep 1000"}});
  ASSERT_TRUE(eventually([&] { return slurp("/proc/" + std::to_string(process.pid()) + "/comm") == "sleep\n"; }))
      << "it does not ignore SIGTERM yet";
  HangingProcess hanging;
  hanging.end(process, 3s, kSomePatience);
  EXPECT_FALSE(process.wait(50ms));
  hanging.end(process, 5s, kSomePatience);
  EXPECT_EQ(process.wait().signal, SIGKILL);
}

TEST(HangingProcess, IsKilledAtOnceIfItIsStopped) {
  Process process = Process::start({.command = {"sleep", "1000"}});
  process.kill(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return host::is_stopped(process.pid()); }));
  HangingProcess().end(process, 0s, kSomePatience);
  EXPECT_EQ(process.wait().signal, SIGKILL);
}

}  // namespace
}  // namespace dtrain::launcher
