// Runs that go on from their checkpoints: automatic restarts, `dtrain launch --continue`, ranks without a launcher, and
// the exit codes of runs that were asked to stop.
#include <gmock/gmock.h>

#include "dtrain/base/file.h"
#include "run_harness.h"

namespace dtrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int kBatches = 30;

Settings saving(const std::string& hyperparameters = "", const std::string& more = "") {
  return {
      .slots = 2,
      .batches = kBatches,
      .hyperparameters = "checkpoint_every: 5, step_ms: 10" + (hyperparameters.empty() ? "" : ", " + hyperparameters),
      .more = more};
}

// What a rank printed last about its weights: the same text for the same bits.
std::string weights_in(const std::string& log) {
  const auto at = log.rfind("weights ");
  return at == std::string::npos ? "none" : log.substr(at, log.find('\n', at) - at);
}

const std::string& undisturbed() {
  static const std::string weights = [] {
    TestRun run(saving());
    EXPECT_EQ(run.launch().wait().describe(), "exit status 0");
    return weights_in(run.log(1));
  }();
  return weights;
}

// Every batch once, in order, and the weights of a run that nothing disturbed.
void expect_whole(const fs::path& run_dir, int batches = kBatches) {
  std::vector<int> seen;
  for (const Json& line : read_lines(run_dir / "metrics.jsonl")) seen.push_back(line.at("batch"));
  std::vector<int> all;
  for (int batch = 1; batch <= batches; ++batch) all.push_back(batch);
  EXPECT_EQ(seen, all);
  if (batches == kBatches) {
    EXPECT_EQ(weights_in(slurp(run_dir / "logs" / "rank-0001.log")), undisturbed());
  }
}

// `dtrain launch --continue RUN`
Command go_on(const TestRun& run, const std::string& which, const std::vector<std::string>& options = {}) {
  std::vector<std::string> command{bin("dtrain"), "launch", "--continue", which};
  command.insert(command.end(), options.begin(), options.end());
  return {run.folder(), command};
}

// Stops a launch in the middle.
void stop(TestRun& run, int signal, int code, const std::vector<std::string>& options = {}) {
  Command launch = run.launch(options);
  EXPECT_TRUE(run.reached(1, 12));
  launch.kill(signal);
  EXPECT_EQ(launch.wait().describe(), "exit status " + std::to_string(code)) << launch.out() << launch.err();
  EXPECT_THAT(launch.out(), HasSubstr("launch --continue "));
}

std::int64_t newest_step(const fs::path& run_dir) {
  std::int64_t newest = 0;
  for (const auto& entry : fs::directory_iterator(run_dir / "checkpoints")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) newest = std::max<std::int64_t>(newest, std::stoll(name.substr(5)));
  }
  return newest;
}

TEST(Restart, GoesOnFromTheNewestCheckpoint) {
  TestRun run(saving("trouble: {rank: 1, batch: 12, kind: SIGKILL, once: true}", "max_restarts: 1\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  expect_whole(run.run_dir());
  EXPECT_THAT(launch.out(), HasSubstr("dtrain: attempt 1 failed: rank 1 was killed by signal 9 (SIGKILL)\n"));
  EXPECT_THAT(launch.out(),
              HasSubstr("restart 1 of 1: it goes on from step-10 (batch 10, epoch 1); logs and records of "
                        "attempt 1 are in " +
                        (run.run_dir() / "attempt-1").string()));
  EXPECT_THAT(slurp(run.run_dir() / "attempt-1" / "logs" / "rank-0001.log"), HasSubstr("batch 11\n"));
  EXPECT_THAT(run.log(0), HasSubstr("resumed at 10\n"));
  EXPECT_FALSE(fs::exists(run.run_dir() / "attempt-1" / "metrics.jsonl")) << "it goes on with them";
  const auto started = events_named(run.events(), "attempt_started");
  ASSERT_EQ(started.size(), 2u);
  EXPECT_FALSE(started[0].contains("resume_from"));
  EXPECT_EQ(started[1].at("attempt"), 2);
  EXPECT_EQ(started[1].at("step"), 10);
  EXPECT_EQ(started[1].at("resume_from"), (run.run_dir() / "checkpoints" / "step-10").string());
  run.expect_nothing_left();
}

TEST(Restart, WithoutACheckpointBeginsAnewAndSaysSo) {
  TestRun run(saving("trouble: {rank: 0, batch: 3, kind: SIGKILL}", "max_restarts: 1\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1");
  EXPECT_THAT(launch.out(), HasSubstr("it goes on from the beginning, because there is no checkpoint of it"));
  EXPECT_THAT(launch.out(), Not(HasSubstr("--continue")));
  EXPECT_TRUE(fs::exists(run.run_dir() / "attempt-1" / "metrics.jsonl"));
}

TEST(Restart, TheirNumberCountsAnewAfterProgress) {
  TestRun run(saving("trouble: {rank: 1, after: 7, kind: SIGKILL}", "max_restarts: 1\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  EXPECT_THAT(launch.out(), HasSubstr("attempt 5 failed"));
  EXPECT_THAT(launch.out(), Not(HasSubstr("restart 2")));
  expect_whole(run.run_dir());
}

// A run whose steps are slow until a file is there.
class SlowRun {
 public:
  explicit SlowRun(const std::string& more = "")
      : run_({.slots = 2,
              .batches = kBatches,
              .hyperparameters = "checkpoint_every: 5, step_ms: 200, until_file: " + file_.string(),
              .more = "max_restarts: 1\n" + more}),
        launch_(run_.launch()) {}
  TestRun& run() { return run_; }
  Command& launch() { return launch_; }

  // The processes of these events.
  std::vector<pid_t> of_event(const std::string& name) const {
    std::vector<pid_t> pids;
    for (const Json& event : events_named(run_.events(), name)) pids.push_back(event.at("pid"));
    return pids;
  }
  bool has(const std::string& event) const { return !events_named(run_.events(), event).empty(); }
  void kill_rank_1_and_end_well() {
    ASSERT_TRUE(run_.reached(1, 6));
    ::kill(of_event("rank_started").at(1), SIGKILL);
    ASSERT_TRUE(eventually([&] { return events_named(run_.events(), "attempt_started").size() == 2; }));
    std::ofstream(file_) << "now";
    EXPECT_EQ(launch_.wait().describe(), "exit status 0") << launch_.out() << launch_.err();
    expect_whole(run_.run_dir());
    run_.expect_nothing_left();
  }
  // Whether each rank of the second attempt is a fork of the waiting process.
  std::vector<bool> forks() const {
    std::vector<bool> forks;
    for (const Json& event : events_named(run_.events(), "rank_started"))
      forks.push_back(event.contains("from_standby"));
    return {forks.begin() + 2, forks.end()};
  }

 private:
  TemporaryFolder folder_;
  fs::path file_ = folder_.path() / "fast";
  TestRun run_;
  Command launch_;
};

TEST(Standby, NewRanksAreItsForksAndHaveTheSameBits) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own in each process";
#endif
  SlowRun slow;
  ASSERT_TRUE(eventually([&] { return slow.has("standby_ready"); })) << slow.launch().out();
  slow.kill_rank_1_and_end_well();
  EXPECT_THAT(slow.forks(), ElementsAre(true, true));
}

TEST(Standby, WithoutItRanksAreStartedAnew) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own in each process";
#endif
  SlowRun slow;
  ASSERT_TRUE(eventually([&] { return slow.has("standby_ready"); })) << slow.launch().out();
  ::kill(slow.of_event("standby_started").at(0), SIGKILL);
  slow.kill_rank_1_and_end_well();
  EXPECT_THAT(slow.forks(), ElementsAre(false, false));
}

TEST(Standby, IsNotThereWhereItIsSwitchedOff) {
  SlowRun slow("recovery: {standby: 0}\n");
  slow.kill_rank_1_and_end_well();
  EXPECT_THAT(slow.forks(), ElementsAre(false, false));
  EXPECT_FALSE(slow.has("standby_started"));
}

// Rank 1 dies. Rank 0 says that it saves, takes longer than a rank gets otherwise, and is done.
TEST(Restart, ARankThatSavesAfterAFailureHasTime) {
  const TemporaryFolder folder;
  const fs::path program = folder.path() / "saves", saved = folder.path() / "saved";
  std::ofstream(program) << "#!/bin/sh\nprintf '{\"type\":\"state\",\"state\":\"started\"}' >&3\nsleep 0.3\n"
                         << "[ $DTRAIN_RANK = 1 ] && kill -9 $$\nsleep 0.2\nprintf '{\"type\":\"saving\"}' >&3\n"
                         << "sleep 1.5\ntouch " << saved << "\n";
  fs::permissions(program, fs::perms::owner_all);
  TestRun run({.entrypoint = program});
  EXPECT_EQ(run.launch().wait().describe(), "exit status 1");
  EXPECT_TRUE(fs::exists(saved));
  run.expect_nothing_left();
}

// The run is further than its beginning, whatever can be read of it: nobody begins anew, and nothing is deleted.
TEST(Restart, DoesNotBeginAnewWhereNoCheckpointCanBeRead) {
  for (const bool for_a_moment : {false, true}) {
    TestRun run(saving("trouble: {rank: 1, batch: 7, kind: hang, once: true}", "max_restarts: 1\n"));
    Command launch = run.launch();
    const fs::path checkpoint = run.run_dir() / "checkpoints" / "step-5";
    ASSERT_TRUE(run.reached(1, 6)) << launch.err();
    ASSERT_TRUE(eventually([&] { return fs::exists(checkpoint); })) << launch.err();
    fs::rename(checkpoint / "manifest.json", checkpoint / "manifest.away");
    ::kill(run.pid_of("rank 1"), SIGKILL);
    if (for_a_moment) {
      ASSERT_TRUE(eventually([&] { return launch.out().find("attempt 1 failed") != std::string::npos; }));
      fs::rename(checkpoint / "manifest.away", checkpoint / "manifest.json");
      EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
      EXPECT_THAT(launch.out(), HasSubstr("restart 1 of 1: it goes on from step-5 (batch 5, epoch 1)"));
      expect_whole(run.run_dir());
    } else {
      EXPECT_EQ(launch.wait().describe(), "exit status 2") << launch.out() << launch.err();
      EXPECT_THAT(launch.err(), HasSubstr("none of the checkpoints of the run"));
      EXPECT_THAT(launch.err(), HasSubstr("to begin at batch 1, delete them with"));
      EXPECT_TRUE(fs::exists(checkpoint / "manifest.away"));
    }
  }
}

// Nobody knows why it does not go on: another attempt may.
TEST(Restart, AfterARankHasBeenStoppedOrHangs) {
  const std::string more = "max_restarts: 1\ncommunication: {timeout: 3}\n";
  for (const bool stopped : {false, true}) {
    SCOPED_TRACE(stopped ? "stopped" : "hangs");
    TestRun run(saving(stopped ? "" : "trouble: {rank: 1, batch: 12, kind: hang, once: true}", more));
    Command launch = run.launch();
    if (stopped) {
      ASSERT_TRUE(run.reached(1, 6)) << launch.err();
      ::kill(run.pid_of("rank 1"), SIGSTOP);
    }
    EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
    EXPECT_THAT(launch.out(), HasSubstr("attempt 1 failed: rank 0 failed at batch"));
    EXPECT_THAT(launch.out(), HasSubstr("restart 1 of 1: it goes on from step-"));
    expect_whole(run.run_dir());
    run.expect_nothing_left();
  }
}

// Runs whose rank 1 stops getting on: it is named with what it does, replaced, and the run ends with the same bits.
struct Hanging {
  const char* name;
  const char* kind;   // of the trouble; "SIGSTOP": the test stops it
  const char* cause;  // as the launcher says it
  const char* call;   // in its stack
};
void PrintTo(const Hanging& hanging, std::ostream* out) {
  *out << hanging.name;
}

class Hang : public testing::TestWithParam<Hanging> {};

TEST_P(Hang, IsNamedWithItsStackAndReplaced) {
  const Hanging& hanging = GetParam();
  const bool stops = std::string(hanging.kind) == "SIGSTOP";
  const std::string trouble = "trouble: {rank: 1, batch: 12, once: true, kind: " + std::string(hanging.kind) + "}";
  TestRun run(saving(stops ? "" : trouble, "max_restarts: 1\nrecovery: {hang: 2}\n"));
  Command launch = run.launch();
  if (stops) {
    ASSERT_TRUE(run.reached(1, 6)) << launch.err();
    ::kill(run.pid_of("rank 1"), SIGSTOP);
  }
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  EXPECT_THAT(launch.out(), HasSubstr(hanging.cause));
  const fs::path logs = run.run_dir() / "attempt-1" / "logs";
  EXPECT_THAT(slurp(logs / "hang-rank-1.txt"), HasSubstr(hanging.call));
  EXPECT_THAT(slurp(logs / "rank-0001.log"), HasSubstr(hanging.call));
  const auto events = events_named(run.events(), "rank_hangs");
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().at("rank"), 1);
  EXPECT_EQ(events.back().at("stopped"), stops);
  expect_whole(run.run_dir());
  run.expect_nothing_left();
}
INSTANTIATE_TEST_SUITE_P(
    Kinds, Hang,
    testing::Values(
        Hanging{"Deadlock", "deadlock", "rank 1 at batch 12, in train_batch.forward, hangs: it has not got on for",
                "lock_twice() in rank_program"},
        Hanging{"Loader", "spin", "rank 1 at batch 12, in dataloader_next, hangs: it has not got on for",
                "spin() in rank_program"},
        Hanging{"CollectiveOfOneRank", "alone",
                "rank 1 at batch 12, in train_batch.forward, waits in 'what no other rank", "main in rank_program"},
        Hanging{"Stopped", "SIGSTOP", ", is stopped (SIGSTOP): it has not got on for", "main in rank_program"}),
    [](const auto& info) { return info.param.name; });

TEST(Hangs, AreLeftAloneWhereTheExperimentSaysSo) {
  TestRun run(saving("trouble: {rank: 1, batch: 12, kind: hang}",
                     "max_restarts: 0\nrecovery: {hang: off}\ncommunication: {timeout: 4}\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1") << launch.out() << launch.err();
  EXPECT_TRUE(events_named(run.events(), "rank_hangs").empty());
  EXPECT_THAT(launch.err(), HasSubstr("timed out"));
}

TEST(Restart, TheirNumberCountsAnewForWhoeverContinues) {
  TestRun run(saving("trouble: {rank: 0, batch: 12, kind: SIGKILL}", "max_restarts: 1\n"));
  EXPECT_EQ(run.launch().wait().describe(), "exit status 1");
  Command again = go_on(run, "run");
  EXPECT_EQ(again.wait().describe(), "exit status 1") << again.err();
  EXPECT_THAT(again.out(), HasSubstr("attempt 3 failed"));
  EXPECT_THAT(again.out(), HasSubstr("restart 1 of 1"));
  EXPECT_EQ(events_named(run.events(), "attempt_started").size(), 4u);
  Command mended = go_on(run, "run", {"--set", "hyperparameters.trouble={}"});
  EXPECT_EQ(mended.wait().describe(), "exit status 0") << mended.err();
  expect_whole(run.run_dir());
}

TEST(Stop, SigtermEndsWith75AndCtrlCWith130AndBothSave) {
  for (const auto& [signal, code] : {std::pair(SIGTERM, 75), std::pair(SIGINT, 130)}) {
    TestRun run(saving());
    stop(run, signal, code);
    EXPECT_GE(newest_step(run.run_dir()), 12);
    const Json ended = events_named(run.events(), "run_ended").at(0);
    EXPECT_EQ(ended.at("exit_code"), code);
    EXPECT_EQ(ended.at("state"), "interrupted");
    Command again = go_on(run, run.run_dir().string());
    EXPECT_EQ(again.wait().describe(), "exit status 0") << again.err();
    EXPECT_THAT(again.out(), HasSubstr("goes on     from step-"));
    expect_whole(run.run_dir());
    run.expect_nothing_left();
  }
}

TEST(Stop, ASigtermToOneRankIsTheEndOfAll) {
  TestRun run(saving());
  Command launch = run.launch();
  EXPECT_TRUE(run.reached(0, 7));
  ::kill(run.pid_of("rank 1"), SIGTERM);
  EXPECT_EQ(launch.wait().describe(), "exit status 75") << launch.out() << launch.err();
  for (const Json& event : events_named(run.events(), "rank_finished")) {
    EXPECT_EQ(event.at("exit_code"), 75);
    EXPECT_EQ(event.at("stopped"), "SIGTERM");
  }
}

TEST(Stop, SighupToARankWithoutALauncherSavesToo) {
  TestRun run(saving());
  Command rank(run.folder(), {rank_program(), run.experiment(), "--run-dir", run.run_dir()});
  ASSERT_TRUE(run.reached(0, 7)) << rank.err();
  rank.kill(SIGHUP);
  EXPECT_EQ(rank.wait().describe(), "exit status 75") << rank.out() << rank.err();
  EXPECT_GE(newest_step(run.run_dir()), 7);
  EXPECT_EQ(events_named(run.events(), "rank_finished").at(0).at("stopped"), "SIGHUP");
}

TEST(Stop, RanksThatMpirunHasStartedSaveAndGoOn) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not there";
  TestRun run(saving());
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof host), 0);
  std::ofstream(run.folder() / "cluster.yaml")
      << "agents: [{id: here, host: " << host << ", slots: 2}]\nlauncher: mpi\n";
  stop(run, SIGTERM, 75);  // ./cluster.yaml is found
  for (const Json& event : events_named(run.events(), "rank_finished")) EXPECT_EQ(event.at("exit_code"), 75);
  Command again = go_on(run, "run");
  EXPECT_EQ(again.wait().describe(), "exit status 0") << again.out() << again.err();
  EXPECT_THAT(run.log(0), HasSubstr("resumed at "));
  expect_whole(run.run_dir());
}

TEST(Stop, WhenTheLauncherIsKilledTheRanksSave) {
  TestRun run(saving());
  Command launch = run.launch();
  EXPECT_TRUE(run.reached(1, 7));
  launch.kill(SIGKILL);
  launch.wait();
  run.expect_nothing_left();
  EXPECT_GE(newest_step(run.run_dir()), 7);
  for (const Json& event : events_named(run.events(), "rank_finished")) EXPECT_EQ(event.at("exit_code"), 1);
  EXPECT_TRUE(eventually([&] {
    Command again = go_on(run, "run");  // refused while the ledger still counts the dead launcher's ranks
    return again.wait().success();
  }));
  expect_whole(run.run_dir());
}

TEST(Continue, PassesOverADamagedCheckpointAndNamesIt) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  const std::string newest = "step-" + std::to_string(newest_step(run.run_dir()));
  const fs::path file = run.run_dir() / "checkpoints" / newest / "rank-0001.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(100).put('\x55');
  Command again = go_on(run, "run");
  EXPECT_EQ(again.wait().describe(), "exit status 0") << again.err();
  EXPECT_THAT(again.err(), HasSubstr("a checkpoint is passed over: " + newest + ": "));
  EXPECT_THAT(again.err(), HasSubstr("rank-0001.safetensors"));
  EXPECT_THAT(again.out(), HasSubstr("goes on     from step-10 (batch 10, epoch 1)"));
  expect_whole(run.run_dir());
}

TEST(Continue, GoesOnWithARunThatWasMovedWithItsExperimentGone) {
  TestRun run(saving());
  stop(run, SIGTERM, 75, {"--set", "hyperparameters.step_ms=11"});
  const fs::path moved = run.folder() / "elsewhere" / "copy";
  fs::create_directories(moved.parent_path());
  fs::rename(run.run_dir(), moved);
  fs::remove(run.experiment());
  Command again = go_on(run, "elsewhere/copy", {"--set", "resources.priority=7"});
  EXPECT_EQ(again.wait().describe(), "exit status 0") << again.err();
  expect_whole(moved);
  const Json plan = read_json(moved / "plan.json");
  EXPECT_EQ(plan.at("experiment").at("hyperparameters").at("step_ms"), 11);
  EXPECT_EQ(plan.at("overrides"), Json({"hyperparameters.step_ms=11", "resources.priority=7"}));
  EXPECT_EQ(plan.at("experiment_file"), run.experiment().string()) << "relative paths are relative to its folder";
  Command tasks(run.folder(), {bin("dtrain"), "task", "show", "2", "--json"});
  tasks.wait();
  EXPECT_EQ(Json::parse(tasks.out()).at("run_dir"), moved.string());
}

TEST(Continue, ACompleteRunGoesOnOnlyIfItIsToBeLonger) {
  TestRun run(saving());
  EXPECT_EQ(run.launch().wait().describe(), "exit status 0");
  Command refused = go_on(run, "run");
  EXPECT_EQ(refused.wait().describe(), "exit status 2");
  EXPECT_THAT(refused.err(), HasSubstr("is complete: 30 batches are done; the length, 30 batches, is not greater\n"));
  EXPECT_THAT(refused.err(), HasSubstr("--set searcher.max_length.batches=60"));
  Command longer = go_on(run, "run", {"--set", "searcher.max_length.batches=40"});
  EXPECT_EQ(longer.wait().describe(), "exit status 0") << longer.err();
  EXPECT_THAT(longer.out(), HasSubstr("goes on     from step-30"));
  expect_whole(run.run_dir(), 40);
}

TEST(Continue, ARunInProgressIsRefusedWithItsTask) {
  TestRun run(saving());
  Command launch = run.launch({"--set", "searcher.max_length.batches=1000000"});
  EXPECT_TRUE(run.reached(0, 3));
  fs::create_directory(run.folder() / "other");
  Command refused(run.folder() / "other", {bin("dtrain"), "launch", "--continue", run.run_dir().string()},
                  {{"DTRAIN_STATE_DIR", (run.folder() / "state").string()}});
  EXPECT_EQ(refused.wait().describe(), "exit status 2");
  EXPECT_THAT(refused.err(), HasSubstr("is in progress: task 1 is running, its launcher is process " +
                                       std::to_string(launch.process().pid())));
  Command elsewhere(run.folder() / "other", {bin("dtrain"), "launch", "--continue", run.run_dir().string()});
  EXPECT_EQ(elsewhere.wait().describe(), "exit status 2") << "with another ledger, its processes are seen";
  EXPECT_THAT(elsewhere.err(), HasSubstr("is in progress: "));
  launch.kill(SIGTERM);
  EXPECT_EQ(launch.wait().describe(), "exit status 75");
}

TEST(Continue, SaysWhatIsDifferentFromBefore) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  Command again =
      go_on(run, "run", {"--set", "hyperparameters.global_batch_size=12", "--set", "resources.slots_per_trial=1"});
  EXPECT_EQ(again.wait().describe(), "exit status 0") << again.err();
  EXPECT_THAT(again.err(), HasSubstr("hyperparameters.global_batch_size was 8 and is 12 from here on"));
  EXPECT_THAT(again.err(), HasSubstr("the run was trained on 2 ranks and is trained on 1 rank from here on"));
}

TEST(Continue, WhatCannotGoOnIsRefused) {
  TestRun run(saving());
  const auto error = [&](const std::string& which, const std::vector<std::string>& options = {}) {
    Command refused = go_on(run, which, options);
    EXPECT_EQ(refused.wait().describe(), "exit status 2");
    return refused.err();
  };
  EXPECT_THAT(error("nowhere"), HasSubstr("no run 'nowhere'"));
  EXPECT_EQ(run.launch({"--mock", "train"}).wait().describe(), "exit status 0");
  EXPECT_THAT(error("run"), HasSubstr("is a mock run, which has no weights to go on with"));
  EXPECT_THAT(error("run", {"--run-dir", "other"}), HasSubstr("excludes"));
  fs::remove(run.run_dir() / "plan.json");
  EXPECT_THAT(error("run"), HasSubstr("nothing of the run"));
}

const std::string kElsewhere = "checkpoint_storage: {type: directory, container_path: disk/all}\n";

TEST(Continue, CheckpointsThatAreNotThereAreNoBeginning) {
  TestRun run(saving("", kElsewhere));
  stop(run, SIGTERM, 75);
  const fs::path disk = run.folder() / "disk";
  const std::string told = "are in " +
                           read_json(run.run_dir() / "plan.json").at("checkpoint_folder").get<std::string>() +
                           ", which is not there (no run.json): is its disk mounted? The last one was of batch ";
  const std::string events = slurp(run.run_dir() / "events.jsonl");
  fs::rename(disk, run.folder() / "unmounted");
  for (const bool mount_point_is_left : {false, true}) {
    if (mount_point_is_left) fs::create_directory(disk);
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"launch", "--continue", "run"}, {"checkpoint", "list", "run"}, {"checkpoint", "verify", "run"}}) {
      std::vector<std::string> command{bin("dtrain")};
      command.insert(command.end(), words.begin(), words.end());
      Command refused(run.folder(), command);
      EXPECT_EQ(refused.wait().describe(), "exit status 2") << words.front();
      EXPECT_THAT(refused.err(), HasSubstr(told)) << words.back();
      EXPECT_THAT(refused.err(), HasSubstr("to begin anew, launch the experiment as a new run"));
    }
    Command rank(run.folder(), {rank_program(), "--continue", "run"});
    EXPECT_EQ(rank.wait().describe(), "exit status 2");
    EXPECT_THAT(rank.err(), HasSubstr(told));
  }
  EXPECT_TRUE(fs::is_empty(disk));
  EXPECT_EQ(slurp(run.run_dir() / "events.jsonl"), events);
  fs::remove(disk);
  fs::rename(run.folder() / "unmounted", disk);
  EXPECT_EQ(go_on(run, "run").wait().describe(), "exit status 0");
  expect_whole(run.run_dir());
}

TEST(Restart, EndsWhereTheCheckpointsAreNotThereAnyMore) {
  TestRun run(saving("", kElsewhere + "max_restarts: 1\n"));
  Command launch = run.launch({"--set", "searcher.max_length.batches=1000000"});
  EXPECT_TRUE(run.reached(1, 12));
  fs::rename(run.folder() / "disk", run.folder() / "unmounted");
  ::kill(run.pid_of("rank 1"), SIGKILL);
  EXPECT_EQ(launch.wait().describe(), "exit status 2") << launch.out() << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("which is not there (no run.json): is its disk mounted? The last one was of"));
  EXPECT_EQ(events_named(run.events(), "run_ended").size(), 1u);
  EXPECT_FALSE(fs::exists(run.folder() / "disk"));
}

TEST(Continue, KeepsOverridesOnceItWasTrainedWithThem) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  for (int i = 0; i < 2; ++i) {
    Command wrong = go_on(run, "run", {"--set", "hyperparameters.step_ms=often"});
    EXPECT_EQ(wrong.wait().describe(), "exit status 1") << wrong.err();
    EXPECT_THAT(wrong.out(), HasSubstr(", without hyperparameters.step_ms=often, with which nothing was trained\n"));
  }
  Command slow = go_on(run, "run", {"--set", "hyperparameters.step_ms=13", "--set", "searcher.max_length.batches=20"});
  EXPECT_EQ(slow.wait().describe(), "exit status 0") << slow.err();
  Command last = go_on(run, "run", {"--set", "searcher.max_length.batches=30"});
  EXPECT_EQ(last.wait().describe(), "exit status 0") << last.err();
  EXPECT_THAT(last.out(), HasSubstr("overrides   hyperparameters.step_ms=13, searcher.max_length.batches=30\n"));
  expect_whole(run.run_dir());
  EXPECT_EQ(read_json(run.run_dir() / "plan.json").at("overrides"),
            Json({"hyperparameters.step_ms=13", "searcher.max_length.batches=30"}));
}

// An attempt that fails before its first batch for a reason of the run's own is not to be continued as it is.
TEST(Continue, AdvisesNothingThatFailsAgain) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  Json plan = read_json(run.run_dir() / "plan.json");
  plan["overrides"] = Json({"hyperparameters.step_ms=often"});
  write_file_atomic(run.run_dir() / "plan.json", plan.dump());
  Command again = go_on(run, "run");
  EXPECT_EQ(again.wait().describe(), "exit status 1");
  EXPECT_THAT(again.out(), Not(HasSubstr("--continue")));
}

TEST(Continue, WithDamagedCheckpointsAloneIsRefused) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  std::vector<std::int64_t> steps;
  for (const auto& entry : fs::directory_iterator(run.run_dir() / "checkpoints")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step-")) continue;
    steps.push_back(std::stoll(name.substr(5)));
    fs::remove(entry.path() / "state.json");
  }
  std::sort(steps.begin(), steps.end());
  ASSERT_GE(steps.size(), 2u);
  const std::string metrics = slurp(run.run_dir() / "metrics.jsonl");
  Command refused = go_on(run, "run");
  EXPECT_EQ(refused.wait().describe(), "exit status 2");
  std::string deletion = "checkpoint delete run";
  for (const std::int64_t step : steps) {
    EXPECT_THAT(refused.err(), HasSubstr("\n  step-" + std::to_string(step) + ": state.json cannot be read"));
    deletion += " " + std::to_string(step);
  }
  EXPECT_THAT(refused.err(), HasSubstr(deletion + "\n"));
  EXPECT_EQ(slurp(run.run_dir() / "metrics.jsonl"), metrics);
  std::vector<std::string> command{bin("dtrain"), "checkpoint", "delete", "run", "--yes"};
  for (const std::int64_t step : steps) command.push_back(std::to_string(step));
  EXPECT_EQ(Command(run.folder(), command).wait().describe(), "exit status 0");
  Command anew = go_on(run, "run");
  EXPECT_EQ(anew.wait().describe(), "exit status 0") << anew.err();
  EXPECT_THAT(anew.out(), HasSubstr("goes on     from the beginning, because there is no checkpoint of it"));
  expect_whole(run.run_dir());
}

TEST(Continue, IsRefusedWhereMoreBatchesAreDone) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  const std::int64_t done = newest_step(run.run_dir());
  Command refused = go_on(run, "run", {"--set", "searcher.max_length.batches=5"});
  EXPECT_EQ(refused.wait().describe(), "exit status 2");
  EXPECT_THAT(refused.err(),
              HasSubstr(std::to_string(done) + " batches are done; the length, 5 batches, is not greater"));
  EXPECT_THAT(refused.err(), HasSubstr("--set searcher.max_length.batches=" + std::to_string(2 * done)));
}

TEST(Continue, ADryRunShowsWhereItGoesOn) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  const std::string newest = "step-" + std::to_string(newest_step(run.run_dir()));
  fs::remove(run.run_dir() / "checkpoints" / newest / "state.json");
  const std::string events = slurp(run.run_dir() / "events.jsonl");
  Command shown = go_on(run, "run", {"--dry-run"});
  EXPECT_EQ(shown.wait().describe(), "exit status 0") << shown.err();
  EXPECT_THAT(shown.out(), HasSubstr("goes on     from step-10 (batch 10, epoch 1)\n"));
  EXPECT_THAT(shown.err(), HasSubstr("a checkpoint is passed over: " + newest + ": "));
  Command json = go_on(run, "run", {"--dry-run", "--json"});
  EXPECT_EQ(json.wait().describe(), "exit status 0") << json.err();
  const Json plan = Json::parse(json.out());
  EXPECT_EQ(plan.at("goes_on").at("step"), 10);
  EXPECT_EQ(plan.at("goes_on").at("passed_over").size(), 1u);
  EXPECT_EQ(slurp(run.run_dir() / "events.jsonl"), events) << "nothing was started";
}

TEST(Continue, TheCheckpointsStayWhereTheyAre) {
  for (const std::string& storage : {std::string(), kElsewhere}) {
    TestRun run(saving("", storage));
    stop(run, SIGTERM, 75);
    Command refused = go_on(run, "run", {"--set", "checkpoint_storage={type: directory, container_path: other}"});
    EXPECT_EQ(refused.wait().describe(), "exit status 2");
    EXPECT_THAT(refused.err(),
                HasSubstr("checkpoint_storage has no effect on a run that has begun: its checkpoints stay "
                          "in " +
                          (run.folder() / (storage.empty() ? "run/checkpoints" : "disk/all/run-")).string()));
    Command numbers = go_on(run, "run", {"--set", "checkpoint_storage.save_trial_latest=3"});
    EXPECT_EQ(numbers.wait().describe(), "exit status 0") << numbers.err();
  }
}

TEST(Continue, ACopyHasCheckpointsOfItsOwn) {
  TestRun run(saving("", kElsewhere));
  stop(run, SIGTERM, 75);
  const auto storage_of = [](const fs::path& run_dir) {
    return fs::path(read_json(run_dir / "checkpoints" / "storage.json").at("storage").get<std::string>());
  };
  const auto names_in = [](const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  };
  const fs::path copy = run.folder() / "copy";
  fs::copy(run.run_dir(), copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const auto before = names_in(storage_of(run.run_dir()));
  Command refused(run.folder(), {bin("dtrain"), "checkpoint", "delete", "copy", "latest", "--yes"});
  EXPECT_EQ(refused.wait().describe(), "exit status 2");
  EXPECT_THAT(refused.err(), HasSubstr("these are the checkpoints of the run " + run.run_dir().string()));
  Command copied = go_on(run, "copy");
  EXPECT_EQ(copied.wait().describe(), "exit status 0") << copied.err();
  EXPECT_THAT(copied.err(), HasSubstr("this run gets a folder of its own, " + storage_of(copy).string()));
  expect_whole(copy);
  EXPECT_EQ(names_in(storage_of(run.run_dir())), before) << "the copy has left them alone";
  Command again = go_on(run, "run");
  EXPECT_EQ(again.wait().describe(), "exit status 0") << again.err();
  expect_whole(run.run_dir());
  EXPECT_NE(storage_of(copy), storage_of(run.run_dir()));
}

TEST(Continue, ACheckpointIsNoRun) {
  TestRun run(saving());
  stop(run, SIGTERM, 75);
  const std::string path = "run/checkpoints/step-";
  Command older = go_on(run, path + "10");
  EXPECT_EQ(older.wait().describe(), "exit status 2");
  EXPECT_THAT(older.err(), HasSubstr(path + "10 is a checkpoint, and a run goes on from its newest one"));
  const std::string newest = std::to_string(newest_step(run.run_dir()));
  EXPECT_THAT(older.err(), HasSubstr("checkpoint delete run " + newest + ", then "));
  EXPECT_THAT(older.err(), HasSubstr("initial_weights: " + (run.run_dir() / "checkpoints/step-10").string()));
  Command last = go_on(run, path + newest);
  EXPECT_EQ(last.wait().describe(), "exit status 2");
  EXPECT_THAT(last.err(), HasSubstr("launch --continue run goes on from it"));
}

TEST(Continue, ARankByItselfGoesOnInItsFolder) {
  TestRun run(saving());
  const std::vector<std::string> program{rank_program(), run.experiment().string(), "--run-dir",
                                         run.run_dir().string()};
  Command first(run.folder(), program);
  EXPECT_TRUE(run.reached(0, 12));
  first.kill(SIGTERM);
  EXPECT_EQ(first.wait().describe(), "exit status 75") << first.err();
  const std::int64_t stopped_at = newest_step(run.run_dir());
  Command second(run.folder(), {rank_program(), "--continue", "run"});
  EXPECT_EQ(second.wait().describe(), "exit status 0") << second.err();
  EXPECT_THAT(run.log(0), HasSubstr("resumed at " + std::to_string(stopped_at) + "\n"));
  EXPECT_EQ(read_lines(run.run_dir() / "metrics.jsonl").size(), static_cast<std::size_t>(kBatches));
  EXPECT_TRUE(fs::exists(run.run_dir() / "attempt-1" / "profile" / "rank-0000.jsonl"));
  Command third(run.folder(), {rank_program(), "--continue", "run"});
  EXPECT_EQ(third.wait().describe(), "exit status 2");
  EXPECT_THAT(third.err(), HasSubstr("is complete"));
  Command both(run.folder(), {rank_program(), "--continue", "run", run.experiment().string()});
  EXPECT_EQ(both.wait().describe(), "exit status 2");
  EXPECT_THAT(both.err(), HasSubstr("--continue takes the experiment and the folder from the run"));
}

// Ranks that something else than dtrain starts agree on the checkpoint that rank 0 has found, and on their exit code.
TEST(Continue, RanksWithoutALauncherDoToo) {
  TestRun run(saving());
  const auto start = [&](int rank, std::vector<std::string> words) {
    words.insert(words.begin(), rank_program());
    const fs::path folder = run.folder() / ("rank-" + std::to_string(rank));
    fs::create_directories(folder);
    return Command(folder, words,
                   {{"RANK", std::to_string(rank)},
                    {"WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", std::to_string(20'000 + ::getpid() % 20'000)},
                    {"XDG_RUNTIME_DIR", run.folder().string()}});
  };
  const std::vector<std::string> words{run.experiment().string(), "--run-dir", run.run_dir().string()};
  {
    Command zero = start(0, words), one = start(1, words);
    EXPECT_TRUE(run.reached(0, 12));
    one.kill(SIGTERM);  // rank 0 is told by rank 1
    EXPECT_EQ(zero.wait().describe(), "exit status 75") << zero.err();
    EXPECT_EQ(one.wait().describe(), "exit status 75") << one.err();
  }
  Command zero = start(0, {"--continue", run.run_dir().string()});
  Command one = start(1, {"--continue", run.run_dir().string()});
  EXPECT_EQ(zero.wait().describe(), "exit status 0") << zero.err();
  EXPECT_EQ(one.wait().describe(), "exit status 0") << one.err();
  expect_whole(run.run_dir());
}

}  // namespace
}  // namespace dtrain
