// Tasks that take turns on the same slots: `dtrain task pause` and `activate`, and preemption by priority.
#include <gmock/gmock.h>

#include "queued_launches.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kBatches = 250;

class TakingTurns : public QueuedLaunches {
 protected:
  TakingTurns()
      : QueuedLaunches({.batches = kBatches, .hyperparameters = "checkpoint_every: 1000, step_ms: 15"},
                       "scheduler: {preemption: true}\n") {}
  // Tasks are numbered from 1, as the launches are.
  Command& launch(int priority, int step_ms = 15) {
    return QueuedLaunches::launch({"--set", "resources.priority=" + std::to_string(priority), "--set",
                                   "hyperparameters.step_ms=" + std::to_string(step_ms)});
  }
  // Its ranks train (again): `attempts` of them have begun by now.
  bool trains(int number, int attempts) {
    return eventually([&] {
      int started = 0;
      int batches = 0;  // since the last start
      std::ifstream events(folder(number) / "run" / "events.jsonl");
      for (std::string line; std::getline(events, line);) started += count_of(line, "\"event\":\"attempt_started\"");
      batches = count_of(slurp(folder(number) / "run" / "logs" / "rank-0001.log"), "batch ");
      return started == attempts && batches >= 3;
    });
  }
  // The same text for the same bits.
  std::string weights(int number) {
    const std::string log = slurp(folder(number) / "run" / "logs" / "rank-0001.log");
    const auto at = log.rfind("weights ");
    return at == std::string::npos ? "none" : log.substr(at, log.find('\n', at) - at);
  }
  void expect_metrics_whole(int number) {
    std::vector<int> seen;
    for (const Json& line : read_lines(folder(number) / "run" / "metrics.jsonl")) seen.push_back(line.at("batch"));
    ASSERT_EQ(seen.size(), static_cast<std::size_t>(kBatches));
    for (int batch = 1; batch <= kBatches; ++batch) EXPECT_EQ(seen[static_cast<std::size_t>(batch - 1)], batch);
  }
};

TEST_F(TakingTurns, ByPriorityThreeTimesEachAndBothEndWithTheUndisturbedBits) {
  Command& low = launch(50);
  ASSERT_TRUE(trains(1, 1)) << low.out() << low.err();
  Command& high = launch(10);
  for (int turn = 1; turn <= 3; ++turn) {
    ASSERT_TRUE(trains(2, turn)) << high.out() << high.err() << low.out() << low.err();
    EXPECT_EQ(show(1).at("state"), "queued");
    EXPECT_EQ(show(1).at("claim"), Json::array());
    EXPECT_THAT(task({"pause", "2"}).out, HasSubstr("task 2 saves after its current step and gives up its slots"));
    ASSERT_TRUE(trains(1, turn + 1)) << low.out() << low.err();
    EXPECT_EQ(show(2).at("state"), "paused");
    EXPECT_THAT(task({"activate", "2"}).out, HasSubstr("task 2 waits in the queue again"));
  }
  EXPECT_EQ(high.wait().describe(), "exit status 0") << high.err();
  EXPECT_EQ(low.wait().describe(), "exit status 0") << low.err();
  EXPECT_THAT(low.out(),
              HasSubstr("dtrain: preempted by task 2 (test): saving after the current step, to go on later"));
  EXPECT_THAT(high.out(), HasSubstr("dtrain: dtrain task pause: it goes on from step-"));
  EXPECT_THAT(high.out(), HasSubstr("; task 1 saves and makes room"));
  EXPECT_EQ(launch(42, 0).wait().describe(), "exit status 0") << "undisturbed";
  EXPECT_NE(weights(3), "none");
  EXPECT_EQ(weights(1), weights(3));
  EXPECT_EQ(weights(2), weights(3));
  expect_metrics_whole(1);
  expect_metrics_whole(2);
  std::vector<std::string> reasons;
  const Json shown = show(1);
  for (const Json& change : shown.at("history")) {
    if (change.at("state") == "queued") reasons.push_back(change.at("reason"));
  }
  EXPECT_THAT(reasons, testing::ElementsAre("", "preempted by task 2 (test)", "preempted by task 2 (test)",
                                            "preempted by task 2 (test)", "preempted by task 2 (test)"));
}

TEST_F(TakingTurns, AnElasticTaskGivesThreeOfFourSlotsAndTakesThemBack) {
  std::ofstream(run_.folder() / "cluster.yaml") << "agents: [{id: here, host: localhost, slots: 4, slot_type: cpu}]\n"
                                                   "scheduler: {preemption: true, grow_after: 0.1}\n";
  const auto launch = [&](const std::string& resources, int step_ms) -> Command& {
    return QueuedLaunches::launch(
        {"--set", "resources={" + resources + "}", "--set", "hyperparameters.step_ms=" + std::to_string(step_ms)});
  };
  const auto has_slots = [&](int slots) {
    return eventually([&] {
      const Json task = show(1);
      return task.at("slots") == slots && task.at("state") == "running";
    });
  };
  Command& low = launch("priority: 50, slots_per_trial: 4, elastic: {min: 1}", 20);
  ASSERT_TRUE(trains(1, 1)) << low.out() << low.err();
  EXPECT_EQ(show(1).at("elastic"), Json::parse(R"({"min": 1, "max": 4})"));
  Command& high = launch("priority: 10, slots_per_trial: 3", 5);
  ASSERT_TRUE(has_slots(1)) << low.out() << low.err() << high.out();
  EXPECT_THAT(task({"list"}).out, HasSubstr("1..4"));
  EXPECT_THAT(task({"resize", "1", "--slots", "5"}).err, HasSubstr("task 1 trains with 1 to 4 slots, not with 5"));
  EXPECT_EQ(high.wait().describe(), "exit status 0") << high.out() << high.err();
  ASSERT_TRUE(has_slots(4)) << low.out() << low.err();
  EXPECT_EQ(low.wait().describe(), "exit status 0") << low.err();
  expect_metrics_whole(1);
  expect_metrics_whole(2);
  std::vector<std::pair<int, int>> changes;
  for (const Json& event : read_lines(folder(1) / "run" / "events.jsonl")) {
    if (event.at("event") == "resized") changes.emplace_back(event.at("from"), event.at("to"));
  }
  EXPECT_THAT(changes, testing::ElementsAre(std::pair(4, 1), std::pair(1, 4)));
  EXPECT_THAT(low.out(), HasSubstr("shrinking for task 2 (test): the run goes on with 1 slot instead of 4"));
  EXPECT_THAT(high.out(), HasSubstr("; task 1 saves and makes room"));
}

TEST_F(TakingTurns, NothingIsPreemptedUnlessTheClusterFileSaysSo) {
  write_cluster("scheduler: {preemption: false}\n");
  Command& low = launch(50);
  ASSERT_TRUE(trains(1, 1));
  Command& high = launch(10);
  ASSERT_TRUE(eventually([&] { return high.says("queued "); }));
  EXPECT_THAT(high.out(), Not(HasSubstr("makes room")));
  EXPECT_THAT(task({"pause", "1"}).out, HasSubstr("gives up its slots")) << "a person may ask all the same";
  ASSERT_TRUE(trains(2, 1)) << high.out() << high.err();
  task({"activate", "1"});
  EXPECT_TRUE(eventually([&] { return show(1).at("state") == "queued"; }));
  high.kill(SIGTERM);
  EXPECT_EQ(high.wait().describe(), "exit status 75");
  ASSERT_TRUE(trains(1, 2)) << low.out() << low.err();
  low.kill(SIGTERM);
  EXPECT_EQ(low.wait().describe(), "exit status 75");
}

TEST_F(TakingTurns, WhoEndsATaskThatWaitsWithACheckpointGetsItsExitCode) {
  for (const auto& [number, signal, code] : {std::tuple(1, SIGTERM, 75), std::tuple(2, SIGINT, 130)}) {
    Command& command = launch(42);
    ASSERT_TRUE(trains(number, 1));
    const std::string id = std::to_string(number);
    task({"pause", id});
    ASSERT_TRUE(eventually([&] { return show(number).at("state") == "paused"; }));
    EXPECT_THAT(task({"pause", id}).out, HasSubstr("is paused already"));
    EXPECT_THAT(task({"list"}).out, HasSubstr("paused"));
    command.kill(signal);
    EXPECT_EQ(command.wait().describe(), "exit status " + std::to_string(code)) << command.err();
    EXPECT_EQ(show(number).at("state"), "interrupted");
    EXPECT_THAT(task({"pause", id}).out, HasSubstr("has already ended: interrupted"));
    EXPECT_THAT(task({"activate", id}).out, HasSubstr("has already ended: interrupted"));
  }
}

TEST_F(TakingTurns, CtrlCWhileItSavesToMakeRoomEndsIt) {
  Command& low = launch(50);
  ASSERT_TRUE(trains(1, 1));
  launch(10);
  ASSERT_TRUE(eventually([&] { return low.says("saving after the current step, to go on later"); }));
  low.kill(SIGINT);
  EXPECT_EQ(low.wait().describe(), "exit status 130") << low.out() << low.err();
  ASSERT_TRUE(trains(2, 1));
  launches_.back()->kill(SIGTERM);
  EXPECT_EQ(launches_.back()->wait().describe(), "exit status 75");
}

}  // namespace
}  // namespace dtrain
