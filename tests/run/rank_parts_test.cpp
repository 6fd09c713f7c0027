// The parts of a rank's session, each by itself.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

#include <gmock/gmock.h>

#include "compare_ranks.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/rank/stop_requests.h"
#include "failure_report.h"
#include "membership.h"
#include "rank_output.h"
#include "run_harness.h"

namespace dtrain::rank {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFullDisk = "/dev/full";

class HandClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return now; }
  Nanoseconds wall() const override { return now; }
  Nanoseconds now{0};
};

TEST(StopRequests, TheLaunchersEndComesFirstThenASignalThenTheLaunchersSignal) {
  { const RankSignals forget_earlier_ones; }
  StopRequests stops;
  EXPECT_FALSE(stops.requested());
  EXPECT_EQ(stops.reason(), "");
  stops.launcher_asks(SIGTERM);
  EXPECT_TRUE(stops.requested());
  EXPECT_EQ(stops.reason(), "SIGTERM");
  {
    const RankSignals signals;
    ::raise(SIGINT);
    EXPECT_EQ(stops.reason(), "SIGINT");
  }
  EXPECT_FALSE(stops.launcher_has_ended());
  EXPECT_TRUE(stops.launcher_ends("the launcher (pid 7)"));
  EXPECT_FALSE(stops.launcher_ends("the launcher (pid 7)")) << "once";
  EXPECT_TRUE(stops.launcher_has_ended());
  EXPECT_EQ(stops.reason(), "the launcher (pid 7) is gone");
}

TEST(ProgressReports, ComeAFewTimesASecondAndAtTheEnd) {
  HandClock clock;
  std::vector<Progress> shown;
  ProgressReport report(clock, [&](const Progress& progress) { shown.push_back(progress); });
  for (std::int64_t batch = 1; batch <= 100; ++batch) {
    clock.now += 10ms;
    report.report({.batch = batch, .total_batches = 100});
  }
  ASSERT_EQ(shown.size(), 5u);
  EXPECT_EQ(shown[1].batch, 40);
  EXPECT_DOUBLE_EQ(shown[1].seconds_left, 0.6);
  EXPECT_EQ(shown.back().batch, 100);
}

TEST(MetricsLogs, CountTheLinesThatAFullDiskDoesNotTake) {
  const TemporaryFolder folder;
  const SystemClock clock;
  RankEvents events(clock, make_null_logger());
  events.try_write("too_early");
  events.open(folder.path() / "events.jsonl", 0, "here");
  MetricsLog metrics(kFullDisk, clock, make_null_logger());
  metrics.report_losses(events);
  for (int i = 0; i < 3; ++i) metrics.write({{"loss", i}});
  metrics.report_losses(events);
  const auto lines = read_lines(folder.path() / "events.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["event"], "metrics_lost");
  EXPECT_EQ(lines[0]["count"], 3);
}

// The hosts of ranks whose hosts have these names.
RankHosts on_hosts(const std::vector<std::string>& names) {
  std::vector<RankHosts::Host> hosts;
  for (const std::string& name : names) hosts.push_back({name, name});
  return {hosts.front(), hosts};
}

TEST(Backends, AutoGoesByWhereTheRanksAre) {
  EXPECT_EQ(backend_for({}, on_hosts({"a"}), false), comm::Backend(comm::ShmBackend()));
  EXPECT_EQ(backend_for({}, on_hosts({"a", "a"}), true), comm::Backend(comm::ShmBackend()));
  EXPECT_EQ(backend_for({}, on_hosts({"a", "b", "c"}), true), comm::Backend(comm::MpiBackend()));
  EXPECT_EQ(backend_for({}, on_hosts({"a", "b", "b"}), true), comm::Backend(comm::HierarchicalBackend()));
  for (const auto& without_mpi : {on_hosts({"a", "b", "c"}), on_hosts({"a", "b", "b"})}) {
    EXPECT_EQ(backend_for({}, without_mpi, false), comm::Backend(comm::TcpBackend()));
  }
}

TEST(Backends, SharedMemoryIsForOneHost) {
  const RankHosts several = on_hosts({"a", "b"});
  for (const comm::Backend& backend : comm::all_backends()) {
    EXPECT_EQ(backend_for(backend, on_hosts({"a", "a"}), true), backend);
    if (comm::spans_hosts(backend)) {
      EXPECT_EQ(backend_for(backend, several, true), backend);
    }
  }
  try {
    (void)backend_for(comm::ShmBackend(), several, true);
    FAIL() << "it was not refused";
  } catch (const AgreedError& error) {
    EXPECT_STREQ(error.what(), "communication.backend is shm, but the ranks are on 2 hosts");
    EXPECT_EQ(error.remedy(), "use auto, mpi, hierarchical or tcp");
  }
}

TEST(Backends, MpiNeedsItsLauncher) {
  RankEnvironment two{.world = {.size = 2, .local_size = 2}, .started_by = "torchrun"};
  EXPECT_FALSE(needs_mpi(two, {}));
  EXPECT_FALSE(needs_mpi(two, comm::ShmBackend()));
  try {
    (void)needs_mpi(two, comm::MpiBackend());
    FAIL() << "it was not refused";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "communication.backend mpi and hierarchical need mpirun to start them; these were started by torchrun");
  }
  two.world.local_size = 1;
  try {
    (void)needs_mpi(two, {});
    FAIL() << "it was not refused";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "ranks on several hosts need MASTER_ADDR and MASTER_PORT, or mpirun to start them; these were started "
                 "by torchrun");
  }
  two.master = MasterAddress{.name = "nodea", .port = 29'400};
  EXPECT_FALSE(needs_mpi(two, {}));
  EXPECT_FALSE(needs_mpi(two, comm::TcpBackend()));
  EXPECT_THROW((void)needs_mpi(two, comm::MpiBackend()), ConfigError);
  two.has_mpi = true;
  EXPECT_TRUE(needs_mpi(two, {}));
}

TEST(RankEventsFile, MayBeFull) {
  const SystemClock clock;
  RankEvents events(clock, make_null_logger());
  events.open(kFullDisk, 0, "here");
  EXPECT_THROW(events.write("lost"), SystemError);
  EXPECT_NO_THROW(events.try_write("lost"));
}

TEST(FailureMessages, NameTheRankTheBatchAndTheRemedy) {
  const FailureCause own = find_cause(DataError("the data is short", "get more"), 1, 7, nullptr);
  EXPECT_TRUE(own.primary);
  EXPECT_EQ(failure_message(own, 1, 4), "rank 1 failed at batch 7: the data is short\n  get more");
  EXPECT_EQ(failure_message(own, 1, 1), "the run failed at batch 7: the data is short\n  get more");
  EXPECT_EQ(failure_message(find_cause(Error("no"), 1, -1, nullptr), 1, 4), "rank 1 could not start: no");
  const FailureCause agreed = find_cause(AgreedError("all differ"), 1, -1, nullptr);
  EXPECT_EQ(agreed.failure.rank, -1);
  EXPECT_EQ(failure_message(agreed, 1, 4), "the run could not start: all differ");
  const FailureCause other{.primary = false, .step = 7, .failure = {.rank = 2, .step = 6, .cause = "no"}};
  EXPECT_EQ(failure_message(other, 1, 4), "rank 1 stopped because rank 2 failed at batch 6");
  EXPECT_EQ(failure_message(other, 1, 4, true),
            "rank 1 stopped because rank 2 failed at batch 6: " + other.failure.cause);
  const FailureCause none{.primary = false, .failure = {.rank = -1, .cause = "the host is lost"}};
  EXPECT_EQ(failure_message(none, 1, 4), "rank 1 stopped because the run cannot go on: the host is lost");
}

class Reports : public ::testing::Test {
 protected:
  Reports() {
    identity_.environment.error_file = folder_.path() / "error.json";
    identity_.environment.started_by = "torchrun";
    events_.open(folder_.path() / "events.jsonl", 0, "here");
  }
  std::vector<Json> events() const { return read_lines(folder_.path() / "events.jsonl"); }

  const TemporaryFolder folder_;
  const SystemClock clock_;
  RankIdentity identity_;
  RankEvents events_{clock_, make_null_logger()};
  FailureReport report_{identity_, events_, clock_, make_null_logger()};
};

TEST_F(Reports, GoToTheScreenToTorchrunAndToTheEventsOnce) {
  report_.set_step(7);
  ::testing::internal::CaptureStderr();
  report_.report(DataError("the data is short", "get more"));
  report_.report(Error("a consequence"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "dtrain: the run failed at batch 7: the data is short\n  get more\n");
  EXPECT_THAT(slurp(identity_.environment.error_file), HasSubstr("the run failed at batch 7: the data is short"));
  const auto lines = events();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["event"], "rank_failed");
  EXPECT_EQ(lines[0]["remedy"], "get more");
  EXPECT_EQ(lines[1]["event"], "run_ended");
  EXPECT_EQ(lines[1]["cause"], "rank 0 failed at step 7: the data is short");
}

TEST_F(Reports, EndWithTheRun) {
  report_.close();
  report_.report(Error("too late"));
  EXPECT_TRUE(events().empty());
}

// Destroyed by exit(), as objects of libraries are that threads still use.
struct CrashAtExit {
  ~CrashAtExit() { std::raise(SIGSEGV); }
};

TEST_F(Reports, OfExitInTheMiddleOfTheRun) {
  const auto fail = [this](const std::exception& error) { report_.report(error); };
  for (const auto& [called_with, ends_with] : {std::pair{7, 7}, {0, 1}}) {
    const auto exits = [&, code = called_with] {
      report_.watch_exit(fail);
      static const CrashAtExit crash;
      report_.set_step(8);
      if (::fork() == 0) std::_Exit(0);
      std::exit(code);
    };
    EXPECT_EXIT(exits(), ::testing::ExitedWithCode(ends_with),
                "the run failed at batch 8: its program called exit.* before the run was over");
  }
}

TEST_F(Reports, OfACrashAfterTheRunChangeNoExitCode) {
  const auto exits = [this] {
    report_.watch_exit([](const std::exception&) { std::_Exit(9); });
    static const CrashAtExit crash;
    report_.close();
    std::exit(5);
  };
  EXPECT_EXIT(exits(), ::testing::ExitedWithCode(5), "the process crashed while it ended, after the run was over");
}

TEST(RankArguments, AMisspelledOptionIsAnsweredWithTheRightOne) {
  const auto said = [](std::string option, const std::string& text) {
    std::string program = "trial";
    char* words[] = {program.data(), option.data()};
    EXPECT_EXIT(parse_rank_arguments(2, words), ::testing::ExitedWithCode(2), "trial: unknown option " + text);
  };
  said("--run-dri=x", "--run-dri=x; did you mean --run-dir.\n");
  said("--expermient", "--expermient; the experiment file is given by its path alone\n");
  said("-contineu", "-contineu; did you mean --continue.\n");
  said("--frobnicate", "--frobnicate\n");
}

TEST_F(Reports, ComeFromTheTimerWhereTheTrainingThreadHangs) {
  ::testing::internal::CaptureStderr();
  report_.report_before_mpirun_kills({.rank = 1, .cause = "rank 1 is gone"});
  EXPECT_TRUE(eventually([&] { return events().size() == 2; }));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rank 1 is gone"));
}

TEST_F(Reports, NothingComesFromATimerThatWasStopped) {
  report_.stop_timer();
  report_.report_before_mpirun_kills({.rank = 1, .cause = "rank 1 is gone"});
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // the timer's grace is 400
  EXPECT_TRUE(events().empty());
}

}  // namespace
}  // namespace dtrain::rank
