// `dtrain launch` and the other ways of starting the same program, when all goes well.
#include <gmock/gmock.h>

#include "dtrain/base/text.h"
#include "run_harness.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

bool has_mpirun() {
  return std::system("command -v mpirun >/dev/null 2>&1") == 0;
}

// What every way of starting leaves in the run's folder.
void expect_complete_run(const TestRun& run, int ranks, int batches) {
  const Json plan = read_json(run.run_dir() / "plan.json");
  EXPECT_EQ(plan.at("world_size"), ranks);
  EXPECT_EQ(plan.at("batch_per_rank").size(), static_cast<std::size_t>(ranks));
  EXPECT_EQ(plan.at("batch_per_rank")[0], 8 / ranks);
  EXPECT_EQ(slurp(run.run_dir() / "experiment.yaml"), slurp(run.experiment()));
  EXPECT_EQ(read_lines(run.run_dir() / "metrics.jsonl").size(), static_cast<std::size_t>(batches));
  EXPECT_EQ(events_named(run.events(), "rank_started").size(), static_cast<std::size_t>(ranks));
  EXPECT_EQ(events_named(run.events(), "rank_finished").size(), static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_THAT(run.log(rank), HasSubstr("batch " + std::to_string(batches) + "\n"));
    run.expect_dump_complete(rank);
  }
  run.expect_nothing_left();
}

TEST(Launch, TwoRanksTrainAndTheSummarySaysWhereTheTimeWent) {
  TestRun run;
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  expect_complete_run(run, 2, 20);
  EXPECT_THAT(launch.out(), HasSubstr("batch       8 = 2 x 4"));
  EXPECT_THAT(launch.out(), HasSubstr("[rank=1] batch 20\n"));
  EXPECT_THAT(launch.out(), HasSubstr("batch 20/20 (100%), loss 0.0500"));
  EXPECT_THAT(launch.out(), HasSubstr("report      " + (run.run_dir() / "report.html").string() + "\nwritten to " +
                                      run.run_dir().string()));
  EXPECT_THAT(launch.out(), HasSubstr("\nnext        "));
  EXPECT_THAT(launch.out(),
              testing::EndsWith("your own model: " DTRAIN_SOURCE_DIR "/examples/fashion_mnist/README.md\n"));
  EXPECT_THAT(slurp(run.run_dir() / "report.html"), HasSubstr("id=\"waterfall\""));
  EXPECT_EQ(events_named(run.events(), "run_ended").at(0).at("exit_code"), 0);
}

TEST(Launch, TheRulesOfTheExperimentAreInThePlan) {
  TestRun run({.slots = 1});
  Command launch = run.launch({"--set", "profiling.rules.StepOutlier.stddev=4"});
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  const Json plan = read_json(run.run_dir() / "plan.json");
  EXPECT_EQ(plan.at("experiment").at("profiling").at("rules").at("StepOutlier").at("stddev"), 4);
}

TEST(Launch, OneRankHasNoPrefix) {
  TestRun run({.slots = 1});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  expect_complete_run(run, 1, 20);
  EXPECT_THAT(launch.out(), Not(HasSubstr("[rank=")));
}

TEST(Launch, MoreRanksThanCores) {
  TestRun run({.slots = 4, .batches = 5});
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  expect_complete_run(run, 4, 5);
}

TEST(Launch, ARemainderOfTheBatchIsAWarning) {
  TestRun run({.slots = 3, .batches = 3});
  Command launch = run.launch({"--set", "optimizations.aggregation_frequency=4"});
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("warning"));
  EXPECT_EQ(read_json(run.run_dir() / "plan.json").at("effective_batch_size"), 3 * 2 * 4);
}

TEST(Launch, ThePlanSaysWhatABatchAndAnOptimizerStepTrainOn) {
  TestRun run({.slots = 3});
  const auto plan = [&](std::vector<std::string> sets) {
    std::vector<std::string> arguments{"--dry-run"};
    for (std::string& set : sets) arguments.insert(arguments.end(), {"--set", std::move(set)});
    Command launch = run.launch(arguments);
    EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
    return launch.out();
  };
  const std::string odd = "hyperparameters.global_batch_size=128";
  EXPECT_THAT(plan({odd}), HasSubstr("batch       126 = 3 x 42, of 128 asked for\n"));
  EXPECT_THAT(plan({odd}), testing::Not(HasSubstr("effective")));
  const std::string both = plan({odd, "optimizations.aggregation_frequency=4"});
  EXPECT_THAT(both, HasSubstr("effective   504 = 4 x 126 in an optimizer step\n"));
  EXPECT_THAT(plan({"hyperparameters.global_batch_size=126"}), HasSubstr("batch       126 = 3 x 42\n"));
}

TEST(Launch, SetOverridesTheFileForEveryRank) {
  TestRun run;
  Command launch = run.launch({"--set", "searcher.max_length.batches=3", "--set", "resources.slots_per_trial=1"});
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  expect_complete_run(run, 1, 3);
}

TEST(Launch, RunsAreNumbered) {
  TestRun run({.slots = 1, .batches = 1});
  for (int i = 0; i < 2; ++i) {
    Command launch(run.folder(), {bin("dtrain"), "launch", run.experiment().string()});
    EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  }
  EXPECT_TRUE(fs::exists(run.folder() / "runs" / "0001-test" / "plan.json"));
  EXPECT_TRUE(fs::exists(run.folder() / "runs" / "0002-test" / "plan.json"));
}

TEST(Launch, ThreadsAreAsManyAsTheSlotsCoresUnlessTheUserSaysOtherwise) {
  for (const bool user_says : {false, true}) {
    TestRun run({.slots = 1, .entrypoint = "[/bin/sh, -c, env]"});
    std::vector<std::string> options;
    if (user_says)
      options = {"--set",
                 "environment.environment_variables={OMP_NUM_THREADS: 97, COLOUR: red, OMP_WAIT_POLICY: active}"};
    Command launch = run.launch(options);
    EXPECT_EQ(launch.wait().describe(), "exit status 1");  // env is no rank, which is said
    EXPECT_THAT(launch.err(), HasSubstr("ended before it joined the run"));
    const auto cpus = events_named(run.events(), "rank_started").at(0).at("cpus").size();
    EXPECT_THAT(run.log(0), HasSubstr("OMP_NUM_THREADS=" + (user_says ? "97" : std::to_string(cpus)) + "\n"));
    EXPECT_THAT(run.log(0), HasSubstr(user_says ? "OMP_WAIT_POLICY=active\n" : "OMP_WAIT_POLICY=passive\n"));
    EXPECT_EQ(count_of(run.log(0), "GOMP_SPINCOUNT=10000\n"), user_says ? 0 : 1);
    EXPECT_EQ(count_of(run.log(0), "COLOUR=red\n"), user_says ? 1 : 0);
  }
}

// As the Python of a virtual environment, which is a link to the system's.
TEST(Launch, AnEntrypointThatIsALinkIsStartedByThePathOfTheLink) {
  TestRun run({.slots = 1, .entrypoint = "venv/bin/program"});
  const fs::path script = run.folder() / "script";
  std::ofstream(script) << "#!/bin/sh\necho started as $0\n";
  fs::permissions(script, fs::perms::owner_all);
  fs::create_directories(run.folder() / "venv" / "bin");
  fs::create_symlink(script, run.folder() / "venv" / "bin" / "program");
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1");  // the script is no rank
  EXPECT_THAT(run.log(0),
              HasSubstr("started as " + (fs::canonical(run.folder()) / "venv/bin/program").string() + "\n"));
}

TEST(Launch, NoSecretIsOnACommandLine) {
  TestRun run({.slots = 2, .batches = 100'000});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 2));
  for (const auto& [who, pid] : run.processes()) {
    const std::string line = slurp("/proc/" + std::to_string(pid) + "/cmdline");
    EXPECT_FALSE(line.empty()) << who;
    EXPECT_THAT(line, Not(testing::ContainsRegex("[0-9a-f]{32}"))) << who;  // a secret has 64 such digits
  }
  launch.kill(SIGTERM);
  launch.wait();
}

TEST(Started, AloneIsOneRank) {
  TestRun run;
  Command rank(run.folder(), {rank_program(), run.experiment(), "--run-dir", run.run_dir()});
  EXPECT_EQ(rank.wait().describe(), "exit status 0") << rank.err();
  expect_complete_run(run, 1, 20);
  EXPECT_THAT(rank.out(), HasSubstr("batch 20\n"));
  EXPECT_THAT(rank.out(), HasSubstr("report      " + (run.run_dir() / "report.html").string() + "\nwritten to " +
                                    run.run_dir().string()));
  EXPECT_TRUE(fs::exists(run.run_dir() / "report.html"));
  EXPECT_THAT(read_json(run.run_dir() / "plan.json").at("warnings").dump(), HasSubstr("slots_per_trial (2)"));
}

TEST(Started, AReaderThatGoesAwayEndsNothing) {
  TestRun run;
  for (const std::string& start : {rank_program(), bin("dtrain") + " launch"}) {
    fs::remove_all(run.run_dir());
    const std::string line = start + " " + run.experiment().string() + " --run-dir " + run.run_dir().string();
    Command shell(run.folder(), {"/bin/bash", "-c", "set -o pipefail; " + line + " | head -n 1"});
    EXPECT_EQ(shell.wait().describe(), "exit status 0") << shell.err();
    EXPECT_THAT(run.log(0), HasSubstr("batch 20\n"));
  }
}

TEST(Started, ByMpirunARunIsComplete) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed";
  TestRun run;
  Command mpirun(run.folder(), {"mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "2", rank_program(),
                                run.experiment(), "--run-dir", run.run_dir()});
  EXPECT_EQ(mpirun.wait().describe(), "exit status 0") << mpirun.err();
  expect_complete_run(run, 2, 20);
  EXPECT_EQ(read_json(run.run_dir() / "plan.json").at("started_by"), "Open MPI");
  EXPECT_EQ(count_of(mpirun.out(), "written to "), 1);
}

// A failure under somebody else's launcher: its exit code says so, and the cause is in what it shows, once.
void expect_cause_told(Command& launcher, const std::string& cause) {
  EXPECT_NE(launcher.wait().code, 0);
  EXPECT_EQ(count_of(launcher.out() + launcher.err(), cause), 1) << launcher.out() << launcher.err();
}

constexpr const char* kThrows = "trouble: {rank: 1, batch: 7, kind: exception}";
constexpr const char* kItsCause = "dtrain: rank 1 failed at batch 7: the model makes no sense";

// Torchrun from the Python peers, or from PATH; empty: there is none.
std::string torchrun_program() {
  const std::string peers = std::string(DTRAIN_SOURCE_DIR) + "/.deps/peers/bin/torchrun";
  if (fs::exists(peers)) return peers;
  return std::system("command -v torchrun >/dev/null 2>&1") == 0 ? "torchrun" : "";
}

// What --standalone does, but by address: a free port, so that several tests may run at a time.
std::vector<std::string> torchrun_command(const TestRun& run) {
  return {torchrun_program(), "--rdzv-backend", "c10d",        "--rdzv-endpoint",  "127.0.0.1:0",
          "--local-addr",     "127.0.0.1",      "--no-python", "--nproc-per-node", "2",
          rank_program(),     run.experiment(), "--run-dir",   run.run_dir()};
}

TEST(Started, ByTorchrunARunIsComplete) {
  if (torchrun_program().empty()) GTEST_SKIP() << "torchrun is not installed: scripts/setup.sh test";
  TestRun run({.slots = 1});
  Command torchrun(run.folder(), torchrun_command(run));
  EXPECT_EQ(torchrun.wait().describe(), "exit status 0") << torchrun.err();
  expect_complete_run(run, 2, 20);
  const Json plan = read_json(run.run_dir() / "plan.json");
  EXPECT_EQ(plan.at("started_by"), "torchrun");
  EXPECT_EQ(plan.at("warnings").at(0),
            "the world size is 2, as torchrun says; resources.slots_per_trial (1) is not used");
  EXPECT_EQ(count_of(torchrun.err(), "slots_per_trial (1) is not used"), 1) << torchrun.err();
  EXPECT_EQ(count_of(torchrun.out(), "written to "), 1);
}

TEST(Started, ARankThatFailsEndsTorchrun) {
  if (torchrun_program().empty()) GTEST_SKIP() << "torchrun is not installed: scripts/setup.sh test";
  TestRun run({.hyperparameters = kThrows});
  Command torchrun(run.folder(), torchrun_command(run));
  expect_cause_told(torchrun, kItsCause);
  const std::string report = torchrun.err().substr(std::min(torchrun.err().find("Root Cause"), torchrun.err().size()));
  EXPECT_THAT(report, testing::ContainsRegex("rank *: 1 .*")) << torchrun.err();
  EXPECT_THAT(report, HasSubstr("rank 1 failed at batch 7: the model makes no sense")) << torchrun.err();
  EXPECT_EQ(events_named(run.events(), "run_ended").at(0).at("exit_code"), 1);
  for (const int rank : {0, 1}) run.expect_dump_complete(rank);
  run.expect_nothing_left();
}

TEST(Started, CtrlCToTorchrunStopsAfterTheStep) {
  if (torchrun_program().empty()) GTEST_SKIP() << "torchrun is not installed: scripts/setup.sh test";
  TestRun run({.batches = 1'000'000});
  Command torchrun(run.folder(), torchrun_command(run));
  ASSERT_TRUE(run.reached(0, 5) && run.reached(1, 5)) << torchrun.err();
  torchrun.kill(SIGINT);
  EXPECT_NE(torchrun.wait().code, 0);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(run.log(rank), HasSubstr("leaving\n"));
    run.expect_dump_complete(rank);
  }
  EXPECT_EQ(events_named(run.events(), "run_ended").at(0).at("exit_code"), 130);
  run.expect_nothing_left();
}

// Why a Slurm of the test's own cannot be started here; empty: it can.
std::string no_slurm() {
  if (::geteuid() != 0) return "only root can start a Slurm for the test";
  for (const char* program : {"munged", "slurmctld", "slurmd", "srun", "ss"}) {
    const std::string look = std::string("export PATH=$PATH:/usr/sbin; command -v ") + program + " >/dev/null 2>&1";
    if (std::system(look.c_str()) != 0) return std::string(program) + " is not installed: scripts/setup.sh test";
  }
  return {};
}

std::vector<std::string> srun_command(const TestRun& run) {
  return {"/bin/bash",
          std::string(DTRAIN_SOURCE_DIR) + "/tests/harness/slurm_bed.sh",
          run.folder() / "slurm",
          "srun",
          "-n",
          "2",
          rank_program(),
          run.experiment(),
          "--run-dir",
          run.run_dir()};
}

TEST(Started, BySrunARunIsComplete) {
  if (const std::string why = no_slurm(); !why.empty()) GTEST_SKIP() << why;
  TestRun run;
  Command srun(run.folder(), srun_command(run));
  EXPECT_EQ(srun.wait().describe(), "exit status 0") << srun.err();
  expect_complete_run(run, 2, 20);
  EXPECT_EQ(read_json(run.run_dir() / "plan.json").at("started_by"), "Slurm");
  EXPECT_EQ(count_of(srun.out(), "written to "), 1);
}

TEST(Started, ARankThatFailsEndsSrunWithItsCode) {
  if (const std::string why = no_slurm(); !why.empty()) GTEST_SKIP() << why;
  TestRun run({.hyperparameters = kThrows});
  Command srun(run.folder(), srun_command(run));
  expect_cause_told(srun, kItsCause);
  EXPECT_EQ(srun.wait().code, 1);
  run.expect_nothing_left();
}

// What torchrun sets, without torchrun.
std::map<std::string, std::string> torchrun(const TestRun& run, int rank) {
  return {{"XDG_RUNTIME_DIR", run.folder()},
          {"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(20000 + ::getpid() % 20000)}};
}

TEST(Started, ByTorchrunsVariablesARunIsComplete) {
  TestRun run;
  fs::create_directory(run.folder() / "second");
  const std::vector<std::string> command{rank_program(), run.experiment(), "--run-dir", run.run_dir()};
  Command second(run.folder() / "second", command, torchrun(run, 1));
  Command first(run.folder(), command, torchrun(run, 0));
  EXPECT_EQ(first.wait().describe(), "exit status 0") << first.err();
  EXPECT_EQ(second.wait().describe(), "exit status 0") << second.err();
  expect_complete_run(run, 2, 20);
  EXPECT_THAT(second.out(), HasSubstr("[rank=1] batch 20\n"));
}

TEST(Started, RanksWithDifferentExperimentsAreRefused) {
  TestRun run;
  fs::create_directory(run.folder() / "second");
  const std::vector<std::string> command{rank_program(), run.experiment(), "--run-dir", run.run_dir()};
  std::vector<std::string> other = command;
  other.insert(other.end(), {"--set", "searcher.max_length.batches=7"});
  Command second(run.folder() / "second", other, torchrun(run, 1));
  Command first(run.folder(), command, torchrun(run, 0));
  EXPECT_EQ(first.wait().code, 2);
  EXPECT_EQ(second.wait().code, 2);
  EXPECT_THAT(first.err(),
              HasSubstr("dtrain: the run could not start: rank 1 was given another experiment than rank 0"));
  EXPECT_THAT(second.err(), HasSubstr("rank 1 stopped with the others; see the error of rank 0"));
  EXPECT_FALSE(fs::exists(run.run_dir()));
}

// Whichever rank is first to report an error.
TEST(Started, WhatRank0IsRefusedIsTheCauseOnAllRanks) {
  TestRun run;
  fs::create_directory(run.folder() / "second");
  fs::create_directory(run.run_dir());
  std::ofstream(run.run_dir() / "events.jsonl") << "";
  const std::vector<std::string> command{rank_program(), run.experiment(), "--run-dir", run.run_dir()};
  Command second(run.folder() / "second", command, torchrun(run, 1));
  Command first(run.folder(), command, torchrun(run, 0));
  EXPECT_EQ(first.wait().code, 2);
  EXPECT_NE(second.wait().code, 0);
  const std::string cause = run.run_dir().string() + " already holds a run";
  EXPECT_THAT(first.err(), HasSubstr("dtrain: the run could not start: --run-dir: " + cause));
  EXPECT_THAT(first.err(), HasSubstr("give another folder"));
  // It has got the error as such, or as that of a run which cannot go on.
  EXPECT_THAT(second.err(),
              testing::AnyOf(HasSubstr("rank 1 stopped with the others; see the error of rank 0"),
                             HasSubstr("rank 1 stopped because the run cannot go on: --run-dir: " + cause)));
}

// What puts a command into a network namespace of its own, where the interface lo is down; empty: that cannot be done.
std::vector<std::string> without_loopback() {
  for (const std::vector<std::string>& way :
       {std::vector<std::string>{"unshare", "--net"}, {"unshare", "--user", "--map-root-user", "--net"}}) {
    if (std::system((join(way, " ") + " true >/dev/null 2>&1").c_str()) == 0) return way;
  }
  return {};
}

TEST(Started, ALoopbackInterfaceThatIsDownIsNamedAtOnce) {
  const std::vector<std::string> apart = without_loopback();
  if (apart.empty()) GTEST_SKIP() << "this machine lets nobody make a network namespace";
  const auto in_namespace = [&](const TestRun& run, std::vector<std::string> command) {
    command.insert(command.begin(), apart.begin(), apart.end());
    return Command(run.folder(), command);
  };
  const std::string cause = "this host cannot connect to itself at 127.0.0.1, by which its ranks find each other: ";
  TestRun run({.more = "max_restarts: 3\n"});
  const std::vector<std::string> launch{bin("dtrain"), "launch", run.experiment(), "--run-dir", run.run_dir()};
  Command launched = in_namespace(run, launch);
  EXPECT_EQ(launched.wait().describe(), "exit status 2");
  EXPECT_THAT(launched.err(), testing::AllOf(HasSubstr(cause), HasSubstr("ip link set lo up")));
  EXPECT_FALSE(fs::exists(run.run_dir()));
  Command alone =
      in_namespace(run, {"/bin/sh", "-c",
                         "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=here MASTER_PORT=29500\n"
                         "RANK=0 LOCAL_RANK=0 \"$@\" & RANK=1 LOCAL_RANK=1 \"$@\"; a=$?; wait $!; exit $((a + $?))",
                         "sh", rank_program(), run.experiment(), "--run-dir", run.run_dir()});
  EXPECT_EQ(alone.wait().describe(), "exit status 4") << "2 of each rank";
  EXPECT_EQ(count_of(alone.err(), cause), 2) << alone.err();
  std::vector<std::string> one_rank = launch;
  one_rank.insert(one_rank.end(), {"--set", "resources.slots_per_trial=1"});
  Command lonely = in_namespace(run, one_rank);
  EXPECT_EQ(lonely.wait().describe(), "exit status 0") << "one rank needs no other: " << lonely.err();
}

TEST(Started, AHalfSetEnvironmentNamesWhatIsMissing) {
  TestRun run;
  Command rank(run.folder(), {rank_program(), run.experiment(), "--run-dir", run.run_dir()}, {{"RANK", "0"}});
  EXPECT_EQ(rank.wait().code, 2);
  EXPECT_THAT(rank.err(), HasSubstr("WORLD_SIZE is not set, though RANK is"));
  EXPECT_FALSE(fs::exists(run.run_dir()));
}

}  // namespace
}  // namespace dtrain
