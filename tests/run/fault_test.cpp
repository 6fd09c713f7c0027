// What happens when something goes wrong: each fault gives its exit code and its error, once, leaves nothing behind,
// and has complete records up to that moment.
#include <gmock/gmock.h>
#include <sys/mount.h>

#include "../harness/small_disk.h"
#include "run_harness.h"

namespace dtrain {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string trouble(int rank, const std::string& kind) {
  return "trouble: {rank: " + std::to_string(rank) + ", batch: 7, kind: " + kind + "}";
}

void expect_sound(const TestRun& run, int ranks) {
  run.expect_nothing_left();
  for (int rank = 0; rank < ranks; ++rank) run.expect_dump_complete(rank);
  read_lines(run.run_dir() / "metrics.jsonl");
}

// A rank ends in the middle of batch 7; the launcher says which and how, once.
struct Death {
  int rank;
  std::string kind;
  std::string cause;
};
class RankDies : public testing::TestWithParam<Death> {};

TEST_P(RankDies, EndsTheRunWithItsCauseOnce) {
  const Death& death = GetParam();
  TestRun run({.batches = 100'000, .hyperparameters = trouble(death.rank, death.kind)});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1") << launch.out();
  const std::string screen = launch.out() + launch.err();
  EXPECT_THAT(launch.err(),
              HasSubstr("dtrain: the run failed: rank " + std::to_string(death.rank) + " " + death.cause));
  EXPECT_EQ(count_of(screen, death.cause), 1) << screen;
  EXPECT_EQ(count_of(screen, "the run failed"), 1);
  EXPECT_THAT(launch.err(), HasSubstr("] batch 6")) << "its last lines";
  const int other = 1 - death.rank;
  EXPECT_THAT(run.log(other), HasSubstr("stopped because rank " + std::to_string(death.rank) + " failed"));
  EXPECT_THAT(launch.err(), HasSubstr("\n  rank " + std::to_string(other) + " stopped because of it\n"));
  EXPECT_EQ(count_of(screen, "stopped because"), 1) << screen;
  EXPECT_LT(launch.err().find(death.cause), launch.err().find("stopped because"));
  expect_sound(run, 2);
}

TEST(RankDiesOfMany, TheCauseComesFirstThenWhatToDoThenWhoFollowed) {
  TestRun run({.slots = 4, .batches = 100'000, .hyperparameters = trouble(1, "SIGKILL")});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1");
  EXPECT_THAT(launch.err(), testing::ContainsRegex("dtrain: the run failed: rank 1 was killed by signal 9 .SIGKILL.\n"
                                                   "  dtrain did not send this signal: another process did[^\n]*\n"
                                                   "  ranks 0, 2-3 stopped because of it\n"));
  EXPECT_EQ(count_of(launch.out() + launch.err(), "stopped because"), 1) << launch.out() << launch.err();
  expect_sound(run, 4);
}

TEST(AllRanks, ThatRefuseAlikeAreNotBlamedOneByOne) {
  TestRun run({.batches = 100'000, .hyperparameters = "trouble: {batch: 7, kind: agreed}"});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1") << launch.out();
  EXPECT_THAT(launch.err(), HasSubstr("dtrain: the run failed: the ranks agree to differ\n"));
  EXPECT_THAT(launch.err(), HasSubstr("agree to agree"));
  EXPECT_THAT(launch.err(), Not(ContainsRegex("rank [01] (failed|stopped)")));
  EXPECT_EQ(count_of(launch.out() + launch.err(), "the ranks agree to differ"), 1) << launch.out() << launch.err();
  for (const int rank : {0, 1}) EXPECT_THAT(run.log(rank), Not(HasSubstr("stopped because")));
  expect_sound(run, 2);
}

INSTANTIATE_TEST_SUITE_P(All, RankDies,
                         testing::Values(Death{1, "SIGKILL", "was killed by signal 9 (SIGKILL)"},
                                         Death{0, "SIGKILL", "was killed by signal 9 (SIGKILL)"},
                                         Death{1, "SIGSEGV", "was killed by signal 11 (SIGSEGV)"},
                                         Death{1, "abort", "was killed by signal 6 (SIGABRT)"},
                                         Death{1, "exit", "ended before the run was over: exit status 7"},
                                         Death{0, "quit", "ended before the run was over: exit status 0"},
                                         Death{1, "leave", "failed at batch 7: its program called exit(7) before the"},
                                         Death{0, "leave_well", "failed at batch 7: its program called exit(0)"},
                                         Death{1, "exception", "failed at batch 7: the model makes no sense"},
                                         Death{0, "exception", "failed at batch 7: the model makes no sense"}),
                         [](const auto& info) { return "Rank" + std::to_string(info.param.rank) + info.param.kind; });

TEST(Fault, AMissingDataFileIsNamed) {
  TestRun run({.batches = 100'000, .hyperparameters = trouble(1, "data")});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1");
  EXPECT_THAT(launch.err(), HasSubstr("rank 1 failed at batch 7: "));
  EXPECT_THAT(launch.err(), HasSubstr("no-such-data.idx"));
  EXPECT_THAT(launch.err(), HasSubstr("No such file or directory"));
  expect_sound(run, 2);
}

TEST(Fault, RanksThatDifferAreToldBothOperations) {
  TestRun run({.batches = 100'000, .hyperparameters = trouble(1, "mismatch")});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1");
  EXPECT_THAT(launch.err(), HasSubstr("float32"));
  EXPECT_THAT(launch.err(), HasSubstr("int64"));
  run.expect_nothing_left();
}

TEST(Fault, ARankThatHangsIsNamedAtTheDeadline) {
  TestRun run({.batches = 100'000, .hyperparameters = trouble(1, "hang"), .more = "communication: {timeout: 2}\n"});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1");
  EXPECT_THAT(launch.err(), HasSubstr("all_reduce"));
  EXPECT_THAT(launch.err(), ContainsRegex("rank 1"));
  run.expect_nothing_left();
}

TEST(Fault, KillOfARankFromOutside) {
  TestRun run({.batches = 100'000});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 10)) << launch.err();
  ::kill(run.pid_of("rank 1"), SIGKILL);
  EXPECT_EQ(launch.wait().describe(), "exit status 1");
  EXPECT_THAT(launch.err(), HasSubstr("rank 1 was killed by signal 9 (SIGKILL)"));
  expect_sound(run, 2);
}

class WhileRanksStart : public testing::TestWithParam<int> {
 protected:
  // Every rank has a process by then, and none is a rank of the run yet.
  static bool has_started(const TestRun& run, int ranks) {
    return eventually([&] {
      return fs::exists(run.run_dir() / "events.jsonl") && run.pid_of("rank " + std::to_string(ranks - 1)) > 0;
    });
  }
};

TEST_P(WhileRanksStart, KillOfOneEndsTheRun) {
  const int ranks = GetParam();
  const SlowStart program;
  for (const int victim : {0, ranks - 1}) {
    TestRun run({.slots = ranks, .batches = 100'000, .entrypoint = program.path()});
    Command launch = run.launch();
    ASSERT_TRUE(has_started(run, ranks)) << launch.err();
    ::kill(run.pid_of("rank " + std::to_string(victim)), SIGKILL);
    EXPECT_EQ(launch.wait().describe(), "exit status 1");
    EXPECT_THAT(launch.err(), HasSubstr("dtrain: the run failed: rank " + std::to_string(victim) +
                                        " was killed by signal 9 (SIGKILL)"));
    EXPECT_EQ(count_of(launch.err(), "the run failed"), 1) << launch.err();
    run.expect_nothing_left();
  }
}

TEST_P(WhileRanksStart, AKilledAgentIsStartedAgain) {
  const int ranks = GetParam();
  const SlowStart program;
  TestRun run({.slots = ranks, .batches = 20, .entrypoint = program.path()});
  Command launch = run.launch();
  ASSERT_TRUE(has_started(run, ranks)) << launch.err();
  ::kill(run.pid_of("agent"), SIGKILL);
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  EXPECT_EQ(count_of(launch.out(),
                     "the monitor of this host was killed by signal 9 (SIGKILL) and was started "
                     "again"),
            1)
      << launch.out();
  for (int rank = 0; rank < ranks; ++rank) run.expect_dump_complete(rank);
  run.expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Ranks, WhileRanksStart, testing::Values(1, 2, 3));

// Whoever finds out says which rank is missing, and that its host still answers for it.
TEST(Fault, AStoppedRankIsNamedAtTheDeadlineAndKilled) {
  for (const int victim : {0, 1}) {
    TestRun run({.batches = 100'000, .more = "communication: {timeout: 5}\n"});
    Command launch = run.launch();
    ASSERT_TRUE(run.reached(1, 10)) << launch.err();
    ::kill(run.pid_of("rank " + std::to_string(victim)), SIGSTOP);
    EXPECT_EQ(launch.wait().describe(), "exit status 1");
    EXPECT_THAT(launch.err(), ContainsRegex("rank " + std::to_string(1 - victim) +
                                            " failed at batch [0-9]+: .*"
                                            "timed out after 5"));
    EXPECT_THAT(launch.err(), ContainsRegex("missing: rank " + std::to_string(victim) + " .*stopped: no heartbeats"));
    run.expect_nothing_left();
  }
}

TEST(Fault, KillOfTheLauncher) {
  TestRun run({.batches = 100'000});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(0, 10)) << launch.err();
  const pid_t launcher = run.pid_of("launcher");
  EXPECT_EQ(launcher, launch.process().pid());
  launch.kill(SIGKILL);
  EXPECT_EQ(launch.wait().signal, SIGKILL);
  expect_sound(run, 2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(run.log(rank), HasSubstr("the launcher (pid " + std::to_string(launcher) + ") is gone"));
    EXPECT_THAT(run.log(rank), HasSubstr("leaving")) << "it finished its step";
  }
  int failed = 0;
  for (const Json& event : run.events())
    failed += event.value("event", "") == "rank_finished" && event["exit_code"] == 1;
  EXPECT_EQ(failed, 2);
}

TEST(Fault, KillOfTheLauncherWhileRanksHang) {
  TestRun run({.batches = 100'000, .hyperparameters = trouble(1, "hang")});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 6)) << launch.err();
  launch.kill(SIGKILL);
  launch.wait();
  run.expect_nothing_left();
  EXPECT_THAT(run.log(1), HasSubstr("ending at once"));
}

class Interrupt : public testing::TestWithParam<int> {};

TEST_P(Interrupt, RanksFinishTheirStepAndTheRunEndsWith130) {
  TestRun run({.batches = 100'000});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 10)) << launch.err();
  launch.kill(GetParam());
  EXPECT_EQ(launch.wait().describe(), "exit status 130") << launch.err();
  EXPECT_THAT(launch.out(), HasSubstr("stopping after the current step"));
  for (int rank = 0; rank < 2; ++rank) EXPECT_THAT(run.log(rank), HasSubstr("leaving"));
  EXPECT_THAT(launch.err(), Not(HasSubstr("failed")));
  EXPECT_EQ(run.log(0).substr(run.log(0).rfind("batch ")), run.log(1).substr(run.log(1).rfind("batch ")))
      << "both stopped after the same batch";
  expect_sound(run, 2);
}
INSTANTIATE_TEST_SUITE_P(All, Interrupt, testing::Values(SIGINT, SIGTERM),
                         [](const auto& info) { return info.param == SIGINT ? "CtrlC" : "SIGTERM"; });

TEST(Fault, ASecondInterruptKills) {
  TestRun run({.batches = 100'000, .hyperparameters = trouble(1, "hang")});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 6)) << launch.err();
  launch.kill(SIGINT);
  ASSERT_TRUE(eventually([&] { return launch.says("stopping after the current step"); }));
  launch.kill(SIGINT);
  EXPECT_EQ(launch.wait().describe(), "exit status 130") << launch.err();
  run.expect_nothing_left();
}

TEST(Fault, AnInterruptDuringTheStartEndsIt) {
  TestRun run({.batches = 100'000});
  Command launch = run.launch();
  ASSERT_TRUE(eventually([&] { return fs::exists(run.run_dir() / "events.jsonl") && run.pid_of("rank 1") > 0; }));
  launch.kill(SIGINT);
  EXPECT_EQ(launch.wait().describe(), "exit status 130") << launch.err();
  run.expect_nothing_left();
}

TEST(Fault, SigtermOfOneRankStopsAllOfThem) {
  TestRun run({.batches = 100'000});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 10)) << launch.err();
  ::kill(run.pid_of("rank 1"), SIGTERM);
  EXPECT_EQ(launch.wait().describe(), "exit status 130") << launch.err();
  expect_sound(run, 2);
}

// Here nothing is left to be saved; weights that cannot be written fail a run (tests/integration/full_disk.py).
TEST(Fault, AFullDiskLeavesEveryLineWholeAndDoesNotStopTheTraining) {
  TestRun run({.batches = 1'000, .hyperparameters = "step_ms: 1, metrics_bytes: 2000"});
  const SmallDisk disk(run.run_dir(), "512k");
  if (!disk) GTEST_SKIP() << "only root can mount a tmpfs";
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("No space left on device"));
  EXPECT_THAT(launch.out(), HasSubstr("batch 1000/1000"));
  run.expect_nothing_left();
  for (const char* file : {"events.jsonl", "metrics.jsonl", "profile/rank-0000.jsonl", "profile/rank-0001.jsonl"}) {
    EXPECT_FALSE(read_lines(run.run_dir() / file).empty()) << file;
  }
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(run.log(rank).empty() || run.log(rank).back() == '\n');
}

// The launcher cannot write the event of the interrupt, however its ranks were started.
class FullDiskAtAnInterrupt : public testing::TestWithParam<std::string> {
 protected:
  // Takes the rest of the last block, so that not even a short line fits.
  static void fill_up(const fs::path& events) {
    const std::uintmax_t block = 4096;
    const std::string begin = R"({"event":"padding","text":")";
    const std::string end = "\"}\n";
    const std::uintmax_t rest = block - fs::file_size(events) % block;
    if (rest < begin.size() + end.size()) return;
    std::ofstream(events, std::ios::app) << begin << std::string(rest - begin.size() - end.size(), '.') << end;
  }
};

// The options for a launch of two ranks by mpirun on this host.
std::vector<std::string> by_mpirun_here(const TestRun& run) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const fs::path cluster = run.folder() / "cluster.yaml";
  std::ofstream(cluster) << "agents: [{id: here, host: " << host << ", slots: 2}]\n"
                         << "launcher: {type: mpi, options: [--oversubscribe]}\n";
  return {"--cluster", cluster};
}

TEST_P(FullDiskAtAnInterrupt, StopsTheRanksAsEver) {
  const bool by_mpirun = GetParam() == "mpi";
  if (by_mpirun && std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  TestRun run({.batches = 1'000'000, .hyperparameters = "step_ms: 1, metrics_bytes: 8000"});
  const SmallDisk disk(run.run_dir(), "512k");
  if (!disk) GTEST_SKIP() << "only root can mount a tmpfs";
  Command launch = run.launch(by_mpirun ? by_mpirun_here(run) : std::vector<std::string>());
  ASSERT_TRUE(eventually([&] { return fs::space(run.run_dir()).available == 0; })) << launch.out() << launch.err();
  fill_up(run.run_dir() / "events.jsonl");
  launch.kill(SIGINT);
  EXPECT_EQ(launch.wait().describe(), "exit status 130") << launch.out() << launch.err();
  EXPECT_EQ(count_of(launch.out(), "events are missing from the run's folder"), 1) << launch.out();
  EXPECT_THAT(launch.out(), HasSubstr("dtrain: SIGINT: stopping after the current step"));
  run.expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Launchers, FullDiskAtAnInterrupt, testing::Values("local", "mpi"));

TEST(Fault, AFullDiskOfTheRecordsAloneIsOneWarningAndTheirNumber) {
  TestRun run({.batches = 1'500, .hyperparameters = "step_ms: 1"});
  const SmallDisk disk(run.run_dir() / "profile", "512k");
  if (!disk) GTEST_SKIP() << "only root can mount a tmpfs";
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  const std::string said = launch.out() + launch.err();
  EXPECT_EQ(count_of(said, "records of this host's ranks are missing from the profile"), 1) << said;
  EXPECT_THAT(said, HasSubstr("No space left on device"));
  EXPECT_THAT(said, HasSubstr((run.run_dir() / "profile").string()));
  EXPECT_THAT(launch.out(), HasSubstr("rank 0: ")) << "the summary counts";
  EXPECT_THAT(launch.out(), HasSubstr(" records could not be written"));
  run.expect_nothing_left();
  std::int64_t lost = 0;
  for (const Json& event : read_lines(run.run_dir() / "events.jsonl")) {
    if (event.value("event", "") == "records_lost") lost += event["count"].get<std::int64_t>();
  }
  EXPECT_GT(lost, 100);
  for (const char* file : {"profile/rank-0000.jsonl", "profile/rank-0001.jsonl"}) read_lines(run.run_dir() / file);
}

class KilledAgent : public testing::TestWithParam<std::string> {};

// What only watches does not end training, and its records are in the profile all the same.
TEST_P(KilledAgent, IsStartedAgain) {
  const bool by_mpirun = GetParam() == "mpi";
  if (by_mpirun && std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  TestRun run({.batches = 600, .hyperparameters = "step_ms: 10"});
  Command launch = run.launch(by_mpirun ? by_mpirun_here(run) : std::vector<std::string>());
  for (const int batch : {10, 300}) {
    ASSERT_TRUE(run.reached(1, batch)) << launch.err();
    const pid_t agent = run.pid_of("agent");
    ::kill(agent, SIGKILL);
    ASSERT_TRUE(eventually([&] { return run.pid_of("agent") != agent; })) << launch.out();
  }
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  EXPECT_EQ(count_of(launch.out(), "the monitor of this host was killed by signal 9 (SIGKILL)"), 2) << launch.out();
  EXPECT_THAT(launch.out(), HasSubstr("was killed by signal 9 (SIGKILL) 2 times")) << "the summary";
  for (int rank = 0; rank < 2; ++rank) run.expect_dump_complete(rank);
  run.expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Launchers, KilledAgent, testing::Values("local", "mpi"));

// A stopped agent takes no records and answers nobody: the ranks do not wait for it, and the launcher ends it.
TEST(Fault, AnAgentThatIsStoppedDoesNotHoldUpTheRanks) {
  TestRun run({.batches = 200, .hyperparameters = "step_ms: 1"});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 10)) << launch.err();
  ::kill(run.pid_of("agent"), SIGSTOP);
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  EXPECT_THAT(launch.out(), HasSubstr("the last records were not confirmed"));
  EXPECT_THAT(launch.out(), HasSubstr("the monitor of this host did not end as it should"));
  EXPECT_THAT(launch.out(), HasSubstr("rank 0: its last records may be missing"));
  run.expect_nothing_left();
}

// Without a launcher: a rank started by itself.
TEST(Fault, ABareRankStopsAtCtrlCAndWhenItsTerminalIsClosed) {
  for (const int signal : {SIGINT, SIGHUP}) {
    TestRun run({.batches = 100'000});
    Command rank(run.folder(), {rank_program(), run.experiment(), "--run-dir", run.run_dir()});
    ASSERT_TRUE(run.reached(0, 10)) << rank.err();
    rank.kill(signal);
    EXPECT_EQ(rank.wait().describe(), "exit status 130") << rank.err();
    EXPECT_THAT(rank.out(), HasSubstr("written to"));
    expect_sound(run, 1);
  }
}

// Where the final weights go then: tests/python/mistakes.py.
TEST(Fault, AFolderThatIsGoneIsNamedAtOnceAndAtTheEndUnlessItComesBack) {
  for (const bool launched : {false, true}) {
    for (const bool comes_back : {false, true}) {
      TestRun run({.batches = 1'000'000, .hyperparameters = "step_ms: 1"});
      std::vector<std::string> command{rank_program(), run.experiment(), "--run-dir", run.run_dir()};
      if (launched) command = {bin("dtrain"), "launch", run.experiment(), "--run-dir", run.run_dir()};
      Command started(run.folder(), command);
      ASSERT_TRUE(run.reached(0, 10)) << started.err();
      const fs::path elsewhere = run.folder() / "elsewhere";
      fs::rename(run.run_dir(), elsewhere);
      const std::string folder = "the run's folder " + run.run_dir().string();
      EXPECT_TRUE(eventually([&] { return started.says(folder + " was moved to " + elsewhere.string()); }))
          << started.out();
      if (comes_back) fs::rename(elsewhere, run.run_dir());
      started.kill(SIGTERM);
      EXPECT_EQ(started.wait().describe(), comes_back ? "exit status 130" : "exit status 1") << started.err();
      const std::string at_the_end = folder + " was moved to " + elsewhere.string() + " while the run went on";
      EXPECT_EQ(count_of(started.err(), at_the_end), comes_back ? 0 : 1) << started.err();
      EXPECT_EQ(started.says("written to "), comes_back) << started.out();
      if (comes_back) expect_sound(run, launched ? 2 : 1);
    }
  }
}

// As under nohup, and in the background of a shell script.
TEST(Fault, SignalsThatTheStarterIgnoresStayIgnored) {
  for (const bool launched : {false, true}) {
    TestRun run({.batches = 100'000});
    const std::string program = launched ? bin("dtrain") + " launch" : rank_program();
    Command command(run.folder(), {"/bin/sh", "-c", "trap '' INT HUP; exec " + program + " \"$@\"", "sh",
                                   run.experiment(), "--run-dir", run.run_dir()});
    ASSERT_TRUE(run.reached(0, 10)) << command.err();
    const auto batch = [&] { return count_of(run.log(0), "batch "); };
    for (const int signal : {SIGINT, SIGHUP}) command.kill(signal);
    const int before = batch();
    EXPECT_TRUE(eventually([&] { return batch() > before + 100; })) << command.out();
    EXPECT_THAT(command.out(), Not(HasSubstr("stopping")));
    command.kill(SIGTERM);
    EXPECT_EQ(command.wait().describe(), "exit status 130") << command.err();
    expect_sound(run, launched ? 2 : 1);
  }
}

TEST(Fault, ABareRankSaysItsCauseOnce) {
  TestRun run({.batches = 100'000, .hyperparameters = trouble(0, "exception")});
  Command rank(run.folder(), {rank_program(), run.experiment(), "--run-dir", run.run_dir()});
  EXPECT_EQ(rank.wait().describe(), "exit status 1");
  EXPECT_EQ(count_of(rank.out() + rank.err(), "the model makes no sense"), 1) << rank.out() << rank.err();
  EXPECT_THAT(rank.err(), HasSubstr("dtrain: the run failed at batch 7: the model makes no sense"));
  EXPECT_THAT(run.log(0), HasSubstr("the model makes no sense"));
  expect_sound(run, 1);
}

TEST(Fault, UnderMpirunARankIsKilled) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  for (const int victim : {0, 1}) {
    TestRun run({.batches = 100'000});
    Command mpirun(run.folder(), {"mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "2", rank_program(),
                                  run.experiment(), "--run-dir", run.run_dir()});
    ASSERT_TRUE(run.reached(1, 10)) << mpirun.err();
    ::kill(run.pid_of("rank " + std::to_string(victim)), SIGKILL);
    EXPECT_NE(mpirun.wait().code, 0);
    expect_sound(run, 2);
  }
}

TEST(Fault, UnderMpirunTheCauseIsSaidOnce) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  TestRun run({.batches = 100'000, .hyperparameters = trouble(1, "exception")});
  Command mpirun(run.folder(), {"mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "2", rank_program(),
                                run.experiment(), "--run-dir", run.run_dir()});
  EXPECT_NE(mpirun.wait().code, 0);
  const std::string screen = mpirun.out() + mpirun.err();
  EXPECT_EQ(count_of(screen, "the model makes no sense"), 1) << screen;
  EXPECT_THAT(mpirun.err(), HasSubstr("dtrain: rank 1 failed at batch 7: the model makes no sense"));
  EXPECT_LE(count_of(screen, "stopped because"), 1) << screen;
  expect_sound(run, 2);
}

// MPI itself says nothing: the others sit in MPI_Init.
TEST(Fault, UnderMpirunARankThatDoesNotComeToMpiIsNamed) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  TestRun run({.more = "communication: {backend: mpi, timeout: 3}"});
  const std::string late = "[ $OMPI_COMM_WORLD_RANK != 1 ] || sleep 60; exec \"$0\" \"$@\"";
  Command mpirun(run.folder(), {"mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "3", "sh", "-c", late,
                                rank_program(), run.experiment(), "--run-dir", run.run_dir()});
  EXPECT_NE(mpirun.wait().code, 0);
  const std::string screen = mpirun.out() + mpirun.err();
  EXPECT_THAT(screen, HasSubstr("MPI did not start within 3.00 s: not every process of the job has come to MPI_Init; "
                                "missing: rank 1"));
  EXPECT_THAT(screen, Not(HasSubstr("missing: rank 1,"))) << "one is missing";
  EXPECT_THAT(screen, Not(HasSubstr("missing: rank 0")));
}

}  // namespace
}  // namespace dtrain
