#include "late_steps.h"

#include <gmock/gmock.h>

#include <initializer_list>
#include <numeric>

namespace dtrain::profile {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A device that comes to its marks when the test says so.
class Timeline final : public DeviceTimeline {
 public:
  void mark() override { ++marks; }
  bool take(std::size_t count, std::vector<std::int64_t>& times) override {
    if (count > reached.size()) return false;
    times.insert(times.end(), reached.begin(), reached.begin() + static_cast<std::ptrdiff_t>(count));
    reached.erase(reached.begin(), reached.begin() + static_cast<std::ptrdiff_t>(count));
    return true;
  }

  std::size_t marks = 0;
  std::vector<std::int64_t> reached;
};

class LateStepsTest : public testing::Test {
 protected:
  struct Change {
    std::int64_t at;
    Phase to;
    PhaseOf whose = PhaseOf::kHostAndDevice;
  };

  // A step of the host, from `begin` to `end`.
  void step(std::int64_t batch, std::int64_t begin, std::initializer_list<Change> changes, std::int64_t end) {
    steps.begin_step(batch);
    Phase phase = Phase::kOther;
    std::int64_t since = begin;
    for (const Change& change : changes) {
      steps.change_phase(phase, since, change.to, change.whose, change.at);
      phase = change.to;
      since = change.at;
    }
    StepRecord on_host{};
    on_host.start_ns = begin;
    on_host.wall_ns = end - begin;
    on_host.samples = 8;
    on_host.phases[static_cast<std::size_t>(Phase::kOther)] = end - begin;
    steps.end_step(phase, since, end, on_host);
  }

  static LateCollective ended(std::int64_t at) {
    return [at]() -> std::optional<CollectiveRecord> {
      CollectiveRecord record;
      record.ended_ns = at;
      record.exposed_ns = 12345;  // of the host
      return record;
    };
  }

  bool hand_on() {
    return steps.hand_on(observer, [&](const Record& record) { records.push_back(record); });
  }

  static std::int64_t time_in(const StepRecord& step, Phase phase) {
    return step.phases[static_cast<std::size_t>(phase)];
  }
  static std::int64_t sum(const StepRecord& step) {
    return std::accumulate(step.phases.begin(), step.phases.end(), std::int64_t{0});
  }

  Timeline timeline;
  LateSteps steps{&timeline};
  StepObserver* observer = nullptr;
  std::vector<Record> records;
};

TEST_F(LateStepsTest, TheTimesOfAStepAreTheDevicesOnceItHasDoneTheStep) {
  step(1, 1000,
       {{1010, Phase::kDataloaderNext},
        {1020, Phase::kToDevice},
        {1030, Phase::kForward},
        {1040, Phase::kBackward},
        {1050, Phase::kTrainBatch},
        {1060, Phase::kOther},
        {1070, Phase::kAllreduceWait},
        {1080, Phase::kOptimizerStep},
        {1090, Phase::kStepLrSchedulers},
        {1095, Phase::kOther}},
       1100);
  EXPECT_EQ(timeline.marks, 9u);
  EXPECT_FALSE(hand_on());
  EXPECT_THAT(records, IsEmpty());
  timeline.reached = {5000, 5001, 5101, 5301, 5601, 5611, 5811, 5911, 5921};
  EXPECT_TRUE(hand_on());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].kind, RecordKind::kStep);
  EXPECT_EQ(records[0].batch, 1);
  const StepRecord& step = records[0].step;
  EXPECT_EQ(step.start_ns, 5000);
  EXPECT_EQ(step.wall_ns, 921);
  EXPECT_EQ(step.samples, 8);
  EXPECT_EQ(time_in(step, Phase::kDataloaderNext), 0);  // the device had work meanwhile
  EXPECT_EQ(time_in(step, Phase::kToDevice), 100);
  EXPECT_EQ(time_in(step, Phase::kForward), 200);
  EXPECT_EQ(time_in(step, Phase::kBackward), 300);
  EXPECT_EQ(time_in(step, Phase::kTrainBatch), 10);
  EXPECT_EQ(time_in(step, Phase::kAllreduceWait), 200);
  EXPECT_EQ(time_in(step, Phase::kOptimizerStep), 100);
  EXPECT_EQ(time_in(step, Phase::kOther), 1 + 10);
  EXPECT_EQ(sum(step), step.wall_ns);
}

// The host launches a CUDA graph in no time; the device takes as long as it takes.
TEST_F(LateStepsTest, AGraphHasTheTimeOfTheDevice) {
  step(1, 1000, {{1010, Phase::kToDevice}, {1020, Phase::kGraph}, {1025, Phase::kCallbacks}}, 1040);
  timeline.reached = {5000, 5001, 5011, 5911, 5921};
  EXPECT_TRUE(hand_on());
  const StepRecord& step = records.at(0).step;
  EXPECT_EQ(time_in(step, Phase::kToDevice), 10);
  EXPECT_EQ(time_in(step, Phase::kGraph), 900);
  EXPECT_EQ(sum(step), step.wall_ns);
}

TEST_F(LateStepsTest, ADeviceThatWaitsForItsHostSpendsThatInThePhasesOfTheHost) {
  step(1, 1000,
       {{1010, Phase::kDataloaderNext},
        {1500, Phase::kForward},
        {1600, Phase::kOptimizerStep},
        {1610, Phase::kDeviceWait},
        {1700, Phase::kCallbacks},
        {1900, Phase::kValidation}},
       2500);
  // It ends the step before at 1200 and this one at 1750, and then waits, too.
  timeline.reached = {1200, 1510, 1700, 1750, 2500};
  EXPECT_TRUE(hand_on());
  const StepRecord& step = records.at(0).step;
  EXPECT_EQ(time_in(step, Phase::kDataloaderNext), 300);  // of its 490, until the forward pass was handed over
  EXPECT_EQ(time_in(step, Phase::kForward), 190);
  EXPECT_EQ(time_in(step, Phase::kOptimizerStep), 50);
  EXPECT_EQ(time_in(step, Phase::kCallbacks), 150);
  EXPECT_EQ(time_in(step, Phase::kValidation), 600);
  EXPECT_EQ(time_in(step, Phase::kDeviceWait), 0);
  EXPECT_EQ(time_in(step, Phase::kOther), 10);
  EXPECT_EQ(sum(step), step.wall_ns);
}

TEST_F(LateStepsTest, WhatTheHostAloneSpendsIsNoPhaseOfTheDevice) {
  step(1, 0,
       {{10, Phase::kBackward},
        {20, Phase::kAllreduceWait, PhaseOf::kHost},
        {30, Phase::kBackward},
        {40, Phase::kOptimizerStep}},
       50);
  EXPECT_EQ(timeline.marks, 4u);
  timeline.reached = {0, 10, 60, 70};
  EXPECT_TRUE(hand_on());
  EXPECT_EQ(time_in(records.at(0).step, Phase::kBackward), 50);
  EXPECT_EQ(time_in(records.at(0).step, Phase::kAllreduceWait), 0);
}

TEST_F(LateStepsTest, ACollectiveIsExposedAsLongAsTheDeviceWaitsAtItsJoin) {
  steps.begin_step(7);
  steps.change_phase(Phase::kOther, 0, Phase::kBackward, PhaseOf::kHostAndDevice, 1);
  steps.change_phase(Phase::kBackward, 1, Phase::kAllreduceWait, PhaseOf::kHostAndDevice, 2);
  bool done = false;
  for (const std::int64_t at : {150, 240, 220, 300, 900}) {  // the last one ends when the host has gone on
    steps.add_collective(
        7, [&done, poll = ended(at)] { return done ? poll() : std::nullopt; }, nullptr);
  }
  steps.change_phase(Phase::kAllreduceWait, 2, Phase::kOptimizerStep, PhaseOf::kHostAndDevice, 3);
  steps.add_collective(7, ended(400), nullptr);  // not waited for by the device
  steps.end_step(Phase::kOptimizerStep, 3, 4, {});
  timeline.reached = {100, 110, 200, 350, 500};
  EXPECT_FALSE(hand_on());  // collectives that have not ended
  EXPECT_THAT(records, IsEmpty());
  done = true;
  EXPECT_TRUE(hand_on());
  ASSERT_EQ(records.size(), 7u);
  std::vector<std::int64_t> exposed;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(records[i].kind, RecordKind::kCollective);
    EXPECT_EQ(records[i].batch, 7);
    exposed.push_back(records[i].collective.exposed_ns);
  }
  EXPECT_THAT(exposed, ElementsAre(0, 40, 0, 60, 50, 12345));
  EXPECT_EQ(time_in(records[6].step, Phase::kAllreduceWait), 150);
}

TEST_F(LateStepsTest, StepsComeInOrderWithAllThatBelongsToThem) {
  steps.begin_step(1);
  steps.add_loader(1, {.time_ns = 1});
  steps.end_step(Phase::kOther, 0, 1, {});
  steps.begin_step(2);  // begun twice, at the end of an epoch: the first leaves no record
  steps.add_collective(2, ended(5), nullptr);
  steps.begin_step(2);
  steps.add_loader(2, {.time_ns = 2});
  steps.end_step(Phase::kOther, 0, 1, {});
  steps.add_collective(2, ended(6), nullptr);  // behind the loop's last step
  EXPECT_FALSE(hand_on());
  timeline.reached = {1, 2};
  EXPECT_FALSE(hand_on());
  EXPECT_EQ(records.size(), 2u);
  timeline.reached = {3};  // of the step that was given up
  EXPECT_FALSE(hand_on());
  timeline.reached = {4, 5};
  EXPECT_TRUE(hand_on());
  std::vector<std::pair<RecordKind, std::int64_t>> order;
  for (const Record& record : records) order.emplace_back(record.kind, record.batch);
  EXPECT_THAT(order, ElementsAre(std::pair(RecordKind::kLoader, 1), std::pair(RecordKind::kStep, 1),
                                 std::pair(RecordKind::kCollective, 2), std::pair(RecordKind::kLoader, 2),
                                 std::pair(RecordKind::kStep, 2), std::pair(RecordKind::kCollective, 2)));
  EXPECT_EQ(records[4].step.start_ns, 4);
}

TEST_F(LateStepsTest, ScopesKeepTheHostsTimesAndComeWithTheirStep) {
  steps.begin_step(1);
  ScopeRecord scope{};
  scope.calls = 3;
  scope.phases[static_cast<std::size_t>(Phase::kForward)] = 700;
  steps.add_scope(1, scope);
  steps.end_step(Phase::kOther, 0, 1, {});
  steps.begin_step(2);  // never ended: its scopes have no record
  steps.add_scope(2, scope);
  EXPECT_FALSE(hand_on());
  timeline.reached = {5000, 5001};
  EXPECT_FALSE(hand_on());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].kind, RecordKind::kScope);
  EXPECT_EQ(records[0].batch, 1);
  EXPECT_EQ(records[0].scope.calls, 3);
  EXPECT_EQ(records[0].scope.phases, scope.phases);
  EXPECT_EQ(records[1].kind, RecordKind::kStep);
  steps.give_up([&](const Record& record) { records.push_back(record); });
  EXPECT_EQ(records.size(), 2u);
}

TEST_F(LateStepsTest, AStepThatTheDeviceNeverDoesHasTheHostsTimes) {
  step(1, 1000, {{1010, Phase::kForward}}, 1100);
  steps.begin_step(2);
  steps.add_collective(
      2, [] { return std::nullopt; }, nullptr);
  steps.give_up([&](const Record& record) { records.push_back(record); });
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].step.start_ns, 1000);
  EXPECT_EQ(records[0].step.wall_ns, 100);
  EXPECT_TRUE(hand_on());
}

TEST_F(LateStepsTest, WithoutATimelineTimesAreTheHostsAndCollectivesAreWaitedFor) {
  LateSteps of_host(nullptr);
  bool done = false;
  of_host.begin_step(1);
  of_host.change_phase(Phase::kOther, 0, Phase::kAllreduceWait, PhaseOf::kHostAndDevice, 1);
  of_host.add_collective(
      1, [&done, poll = ended(9)] { return done ? poll() : std::nullopt; }, nullptr);
  StepRecord on_host{};
  on_host.start_ns = 3;
  on_host.wall_ns = 4;
  of_host.end_step(Phase::kAllreduceWait, 1, 7, on_host);
  const auto write = [&](const Record& record) { records.push_back(record); };
  EXPECT_FALSE(of_host.hand_on(nullptr, write));
  done = true;
  EXPECT_TRUE(of_host.hand_on(nullptr, write));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].collective.exposed_ns, 12345);
  EXPECT_EQ(records[1].step.start_ns, 3);
  EXPECT_EQ(records[1].step.wall_ns, 4);
}

TEST_F(LateStepsTest, AnObserverSeesTheCollectivesOfItsOwnTimeWithTheirTimesOnTheDevice) {
  class Observer final : public StepObserver {
   public:
    void on_phase(Phase, std::int64_t, std::int64_t) override {}
    void on_scope(std::string_view, std::int64_t, std::int64_t) override {}
    void on_step(std::int64_t, std::int64_t, std::int64_t) override {}
    void on_collective(std::int64_t batch, const CollectiveRecord& collective) override {
      seen.emplace_back(batch, collective.ended_ns);
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  } observer_of_two;
  steps.begin_step(1);
  steps.add_collective(1, ended(10), nullptr);
  steps.end_step(Phase::kOther, 0, 1, {});
  steps.begin_step(2);
  steps.add_collective(2, ended(20), &observer_of_two);
  steps.end_step(Phase::kOther, 0, 1, {});
  timeline.reached = {1, 2, 3, 4};
  observer = &observer_of_two;
  EXPECT_TRUE(hand_on());
  EXPECT_THAT(observer_of_two.seen, ElementsAre(std::pair(2, 20)));
}

}  // namespace
}  // namespace dtrain::profile
