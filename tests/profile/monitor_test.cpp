#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "support.h"

namespace dtrain::profile {
namespace {

void record_steps(Recorder& recorder, int count) {
  for (int batch = 1; batch <= count; ++batch) {
    recorder.begin_step(batch);
    {
      const PhaseScope train(recorder, Phase::kTrainBatch);
      { const PhaseScope forward(recorder, Phase::kForward); }
      { const PhaseScope backward(recorder, Phase::kBackward); }
    }
    {
      const PhaseScope wait(recorder, Phase::kAllreduceWait);
      CollectiveRecord all_reduce;
      all_reduce.sequence = static_cast<std::uint64_t>(batch);
      std::snprintf(all_reduce.operation, sizeof all_reduce.operation, "all_reduce");
      recorder.collective(all_reduce);
    }
    recorder.end_step({{8}, true, 0});
  }
}

bool is_alive(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

TEST(Monitor, WritesWhatTwoRanksRecordAndEndsAfterThem) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0, 1}));
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(fork_child([&] {
      const SystemClock clock;
      Recorder recorder(TestRun::rank_options(monitor, rank, 2), clock, clock.monotonic());
      recorder.mark(RunMark::kInitializationEnd);
      record_steps(recorder, 500);
      recorder.mark(RunMark::kLoopEnd);
      std::this_thread::sleep_for(150ms);  // so that a sample is due
      recorder.mark(RunMark::kFinalizationEnd);
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(wait_for(rank), 0);
  const auto status = monitor.process.wait(kDeadline);
  ASSERT_TRUE(status) << "the agent must end by itself";
  EXPECT_TRUE(status->success()) << status->describe();

  for (int rank = 0; rank < 2; ++rank) {
    const auto records = read_dump(run.rank_dump(rank));
    const Json& header = records.front();
    EXPECT_EQ(header["record"], "header");
    EXPECT_EQ(header["schema"], 1);
    EXPECT_EQ(header["rank"], rank);
    EXPECT_EQ(header["world_size"], 2);
    EXPECT_EQ(header["agent"], "host1");
    EXPECT_EQ(header["pid"], ranks[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(header["versions"]["dtrain"], "0.1.0");
    EXPECT_GE(header["clock"]["error_ns"], 0);
    const auto steps = of_kind(records, "step");
    ASSERT_EQ(steps.size(), 500u);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i]["batch"], i + 1);
      EXPECT_EQ(sum_of_top_level(steps[i]["phases"]), steps[i]["wall_ns"].get<std::int64_t>());
    }
    EXPECT_EQ(of_kind(records, "collective").size(), 500u);
    EXPECT_EQ(of_kind(records, "part").size(), 3u);
    EXPECT_EQ(records.back()["record"], "end");
    EXPECT_EQ(records.back()["how"], "finished");
    EXPECT_EQ(records.back()["records"], 1003);
    EXPECT_EQ(records.back()["dropped"], 0);
  }
  const auto system = read_dump(run.monitor_dump());
  EXPECT_EQ(system.front()["kind"], "agent");
  EXPECT_EQ(system.front()["run"], "0007");
  EXPECT_GE(of_kind(system, "system").size(), 1u) << "also a short run has a sample";
  EXPECT_TRUE(of_kind(system, "system").back().contains("free_memory"));
  EXPECT_EQ(system.back()["how"], "all ranks ended");
}

TEST(Monitor, ARankKilledInMidStepLosesNothing) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const pid_t rank = fork_child([&] {
    const SystemClock clock;
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    record_steps(recorder, 2'000);
    recorder.begin_step(2'001);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(WTERMSIG(wait_for(rank)), SIGKILL);
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  EXPECT_EQ(of_kind(records, "step").size(), 2'000u);
  EXPECT_EQ(of_kind(records, "collective").size(), 2'000u);
  EXPECT_EQ(records.back()["record"], "end");
  EXPECT_EQ(records.back()["how"], "connection lost");
}

TEST(Monitor, AFullRingIsCountedInTheDump) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const SystemClock clock;
  {
    auto options = TestRun::rank_options(monitor, 0);
    options.ring_bytes = 1;  // one record
    Recorder recorder(options, clock, clock.monotonic());
    monitor.process.kill(SIGSTOP);  // so that nothing is drained meanwhile
    record_steps(recorder, 10);     // two records each
    monitor.process.kill(SIGCONT);
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  EXPECT_EQ(records.back()["records"].get<int>() + records.back()["dropped"].get<int>(), 20);
  EXPECT_GE(records.back()["dropped"], 1);
  std::int64_t dropped = 0;
  for (const Json& note : of_kind(records, "dropped")) dropped += note["count"].get<std::int64_t>();
  EXPECT_EQ(dropped, records.back()["dropped"].get<std::int64_t>());
}

TEST(Monitor, FlushMeansItIsInTheFile) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const SystemClock clock;
  Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
  for (int i = 1; i <= 5; ++i) {
    record_steps(recorder, 3);
    recorder.flush(kDeadline);
    EXPECT_EQ(of_kind(read_dump(run.rank_dump(0)), "step").size(), static_cast<std::size_t>(3 * i));
  }
}

TEST(Monitor, FlushHasADeadlineAndSeesADeadMonitor) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const SystemClock clock;
  Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
  monitor.process.kill(SIGSTOP);
  EXPECT_THROW(recorder.flush(50ms), CommError);
  monitor.process.kill(SIGKILL);
  monitor.process.wait();
  EXPECT_THROW(recorder.flush(kDeadline), CommError);
  EXPECT_FALSE(recorder.monitor_is_here());
  record_steps(recorder, 1);  // training goes on
}

// Kills the monitor, and waits until it has been started again and the rank has found it.
void kill_and_wait_for_the_next(KeptMonitor& monitor, Recorder& recorder) {
  const pid_t before = monitor.pid();
  ::kill(before, SIGKILL);
  std::optional<KeptMonitor::Change> change;
  ASSERT_TRUE(eventually([&] { return (change = monitor.look()).has_value(); }));
  ASSERT_TRUE(change->ended);
  EXPECT_EQ(change->ended->signal, SIGKILL);
  EXPECT_THAT(change->text(), testing::HasSubstr("was killed by signal 9 (SIGKILL) and was started again as process"));
  EXPECT_NE(change->started, before);
  EXPECT_EQ(monitor.pid(), change->started);
  EXPECT_FALSE(monitor.look());
  const SystemClock clock;
  ASSERT_TRUE(eventually([&] { return !recorder.monitor_is_here(); })) << "it notices";
  ASSERT_TRUE(eventually([&] { return recorder.monitor_is_here(); })) << "and connects again";
}

TEST(KeptMonitor, AKilledOneIsStartedAgainAndNoRecordIsLost) {
  TestRun run;
  const SystemClock clock;
  KeptMonitor monitor(run.monitor_options({0}), clock);
  {
    Recorder::Options options;
    options.monitor_socket = monitor.socket();
    Recorder recorder(options, clock, clock.monotonic());
    record_steps(recorder, 100);
    recorder.flush(kDeadline);
    ::kill(monitor.pid(), SIGSTOP);
    record_steps(recorder, 50);  // which wait in the ring
    kill_and_wait_for_the_next(monitor, recorder);
    record_steps(recorder, 100);
    recorder.flush(kDeadline);
    EXPECT_EQ(recorder.lost(), 0);
  }
  EXPECT_TRUE(monitor.finish(kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  EXPECT_EQ(of_kind(records, "step").size(), 250u);
  EXPECT_EQ(of_kind(records, "collective").size(), 250u);
  EXPECT_EQ(of_kind(records, "dropped").size(), 0u);
  EXPECT_EQ(of_kind(records, "header").size(), 2u) << "each agent wrote one";
  EXPECT_EQ(records.back()["how"], "finished");
  EXPECT_EQ(of_kind(read_dump(run.monitor_dump()), "header").size(), 2u);
}

TEST(KeptMonitor, DroppedRecordsAreCountedOnce) {
  TestRun run;
  const SystemClock clock;
  KeptMonitor monitor(run.monitor_options({0}), clock);
  std::int64_t in_file = 0;
  std::int64_t dropped = 0;
  {
    Recorder::Options options;
    options.monitor_socket = monitor.socket();
    options.ring_bytes = 1;  // one record
    Recorder recorder(options, clock, clock.monotonic());
    ::kill(monitor.pid(), SIGSTOP);
    record_steps(recorder, 10);  // two records each
    ::kill(monitor.pid(), SIGCONT);
    recorder.flush(kDeadline);
    kill_and_wait_for_the_next(monitor, recorder);
    recorder.flush(kDeadline);
  }
  EXPECT_TRUE(monitor.finish(kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  for (const Json& note : of_kind(records, "dropped")) dropped += note["count"].get<std::int64_t>();
  in_file = static_cast<std::int64_t>(of_kind(records, "step").size() + of_kind(records, "collective").size());
  EXPECT_GE(dropped, 1);
  EXPECT_EQ(in_file + dropped, 20);
}

// The next monitor cuts the run into the same windows: those of all ranks must match.
TEST(KeptMonitor, WindowsOfALongRunKeepTheirPlace) {
  TestRun run;
  const SystemClock clock;
  KeptMonitor monitor(run.monitor_options({0}), clock);
  {
    Recorder::Options options;
    options.monitor_socket = monitor.socket();
    options.ring_bytes = 16u << 20;
    Recorder recorder(options, clock, clock.monotonic());
    record_steps(recorder, 10'150);
    recorder.flush(kDeadline);
    kill_and_wait_for_the_next(monitor, recorder);
    for (int batch = 10'151; batch <= 10'450; ++batch) {
      recorder.begin_step(batch);
      recorder.end_step({});
    }
    recorder.flush(kDeadline);
  }
  EXPECT_TRUE(monitor.finish(kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  std::set<std::int64_t> batches;
  for (const Json& step : of_kind(records, "step")) batches.insert(step["batch"].get<std::int64_t>());
  std::int64_t steps = static_cast<std::int64_t>(batches.size());
  std::vector<std::int64_t> ends;
  for (const Json& window : of_kind(records, "window")) {
    ends.push_back(window["last_batch"].get<std::int64_t>());
    steps += window["steps"].get<std::int64_t>();
  }
  EXPECT_EQ(steps, 10'450);
  EXPECT_EQ(ends, (std::vector<std::int64_t>{10'100, 10'200, 10'300, 10'400}));
}

TEST(Monitor, StaysWhenSignalsForTheRanksReachIt) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  EXPECT_EQ(::getpgid(monitor.process.pid()), monitor.process.pid()) << "a terminal's signals go elsewhere";
  EXPECT_EQ(::getsid(monitor.process.pid()), ::getsid(0)) << "a share of the ranks' processors";
  const SystemClock clock;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) monitor.process.kill(signal);
    record_steps(recorder, 5);
    recorder.flush(kDeadline);
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  EXPECT_EQ(of_kind(read_dump(run.rank_dump(0)), "step").size(), 5u);
}

TEST(Monitor, RefusesARankOfAnotherHostAndEndsConnectionsThatMakeNoSense) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const SystemClock clock;
  try {
    Recorder recorder(TestRun::rank_options(monitor, 5), clock, clock.monotonic());
    FAIL() << "rank 5 is not of this host";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 5"));
  }
  for (const char* nonsense :
       {"not JSON", "[1]", "{\"type\":7}", "{\"type\":\"flush\"}", "{\"type\":\"hello\",\"rank\":\"x\"}",
        "{\"type\":\"hello\",\"protocol\":1,\"rank\":0}"}) {
    UnixSocket socket = UnixSocket::connect(monitor.socket, 1s);
    socket.send(nonsense);
    bool timed_out = false;
    while (socket.receive(kDeadline, &timed_out)) {
    }
    EXPECT_FALSE(timed_out) << nonsense;
  }
  { Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic()); }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
}

TEST(Monitor, ASecondConnectionOfARankIsRefusedWhileTheFirstStands) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0, 1}));
  const SystemClock clock;
  {
    Recorder first(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    try {
      const Recorder second(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
      FAIL() << "two processes say they are rank 0";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 is connected already"));
    }
    record_steps(first, 3);
    first.flush(kDeadline);  // it still stands
  }
  EXPECT_TRUE(finish_monitor(monitor, 0ms).success());
  const auto records = read_dump(run.rank_dump(0));
  EXPECT_EQ(of_kind(records, "step").size(), 3u);
  EXPECT_EQ(of_kind(records, "header").size(), 1u);
}

TEST(Monitor, OutOfDescriptorsItWaitsForOneInsteadOfSpinning) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const auto used = std::distance(fs::directory_iterator("/proc/" + std::to_string(monitor.process.pid()) + "/fd"), {});
  const rlimit few{static_cast<rlim_t>(used + 4), static_cast<rlim_t>(used + 4)};
  ASSERT_EQ(::prlimit(monitor.process.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  const auto warnings = [&] {
    std::ifstream file(run.folder.path() / "logs" / "agent-host1.log");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    int count = 0;
    for (auto at = text.find("cannot accept"); at != std::string::npos; at = text.find("cannot accept", at + 1))
      ++count;
    return count;
  };
  {
    std::vector<UnixSocket> crowd;
    for (int i = 0; i < 8; ++i) crowd.push_back(UnixSocket::connect(monitor.socket, 1s));
    EXPECT_TRUE(eventually([&] { return warnings() >= 2; })) << "it tries again";
    EXPECT_LE(warnings(), 50) << "and again, and again";
  }
  const SystemClock clock;
  { const Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic()); }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
}

TEST(Monitor, EndsWhenNoRankComes) {
  TestRun run;
  auto options = run.monitor_options({0, 1});
  options.rank_timeout = 1s;
  MonitorProcess monitor = start_monitor(options);
  ASSERT_TRUE(monitor.process.wait(kDeadline));
  EXPECT_EQ(read_dump(run.monitor_dump()).back()["how"], "no rank came in time");
}

TEST(Monitor, CanBeToldToEnd) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0, 1}));
  EXPECT_TRUE(finish_monitor(monitor, 0ms).success());
  EXPECT_EQ(read_dump(run.monitor_dump()).back()["how"], "stopped");
}

TEST(Monitor, SaysWhyItDoesNotStart) {
  TestRun run;
  auto options = run.monitor_options({0});
  options.profile_folder = run.folder.path() / "not-there";
  try {
    start_monitor(options);
    FAIL() << "started without a folder";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("not-there"));
  }
}

// The starter is killed: with a rank left the monitor stays until the rank has gone, and leaves nothing behind.
TEST(Monitor, OutlivesItsStarterButNotTheLastRank) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  TestRun run;
  int to_test[2];
  ASSERT_EQ(::pipe(to_test), 0);
  struct Facts {
    pid_t monitor, rank;
  };
  const pid_t starter = fork_child([&] {
    MonitorProcess monitor = start_monitor(run.monitor_options({0}));
    const pid_t rank = fork_child([&] {
      const SystemClock clock;
      Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
      record_steps(recorder, 10);
      recorder.flush(kDeadline);
      const char ready = 'r';
      [[maybe_unused]] auto written = ::write(to_test[1], &ready, 1);
      ::pause();
    });
    const Facts facts{monitor.process.pid(), rank};
    [[maybe_unused]] auto written = ::write(to_test[1], &facts, sizeof facts);
    ::pause();
  });
  std::string received;
  while (received.size() < sizeof(Facts) + 1) {
    char buffer[64];
    const ssize_t count = ::read(to_test[0], buffer, sizeof buffer);
    ASSERT_GT(count, 0);
    received.append(buffer, static_cast<std::size_t>(count));
  }
  // Which of the two came first is open.
  Facts facts{};
  std::memcpy(&facts, received.data() + (received[0] == 'r' ? 1 : 0), sizeof facts);
  ::kill(starter, SIGKILL);
  EXPECT_EQ(WTERMSIG(wait_for(starter)), SIGKILL);
  std::this_thread::sleep_for(300ms);
  EXPECT_TRUE(is_alive(facts.monitor)) << "a rank is still there";
  ::kill(facts.rank, SIGKILL);
  wait_for(facts.rank);
  int status = 0;
  ASSERT_TRUE(eventually([&] { return ::waitpid(facts.monitor, &status, WNOHANG) == facts.monitor; }));
  EXPECT_EQ(status, 0);
  const auto records = read_dump(run.rank_dump(0));
  EXPECT_EQ(of_kind(records, "step").size(), 10u);
  EXPECT_EQ(records.back()["how"], "connection lost");
}

TEST(Monitor, EndsWhenItsStarterDiedBeforeAnyRankCame) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  TestRun run;
  int to_test[2];
  ASSERT_EQ(::pipe(to_test), 0);
  const pid_t starter = fork_child([&] {
    MonitorProcess monitor = start_monitor(run.monitor_options({0}));
    const pid_t pid = monitor.process.pid();
    [[maybe_unused]] auto written = ::write(to_test[1], &pid, sizeof pid);
    ::kill(::getpid(), SIGKILL);
  });
  pid_t monitor = 0;
  ASSERT_EQ(::read(to_test[0], &monitor, sizeof monitor), static_cast<ssize_t>(sizeof monitor));
  wait_for(starter);
  ASSERT_TRUE(eventually([&] { return ::waitpid(monitor, nullptr, WNOHANG) == monitor; }));
  EXPECT_EQ(read_dump(run.monitor_dump()).back()["how"], "starter gone");
}

}  // namespace
}  // namespace dtrain::profile
