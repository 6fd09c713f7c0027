// Which tasks make room for which, and tasks that are paused or queued again.
#include "queue.h"

#include "ledger_fixture.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TaskRequest wants(int slots, const std::vector<int>& agents, int priority) {
  TaskRequest result{.name = "new", .priority = priority, .preemption = true};
  result.slots.slots = slots;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    result.agents.push_back({.id = std::string(1, static_cast<char>('a' + i)), .slots = agents[i], .free = agents[i]});
  }
  return result;
}

std::vector<TaskId> victims(const std::vector<TaskRequest>& queue, const HeldSlots& held,
                            const std::vector<RunningTask>& running) {
  std::vector<QueuedTask> queued;
  for (const TaskRequest& one : queue) queued.push_back({static_cast<TaskId>(100 + queued.size()), &one});
  std::vector<TaskId> stopped;
  for (const Yield& yield : choose_yields(queued, held, running)) {
    EXPECT_THAT(yield.keeps, IsEmpty());
    stopped.push_back(yield.id);
  }
  return stopped;
}

RunningTask runs(TaskId id, int priority, int started_s) {
  return {.id = id, .priority = priority, .started = std::chrono::seconds(started_s), .can_yield = true};
}

HeldSlots each_a_slot_of_a(int count) {
  HeldSlots held;
  for (int slot = 0; slot < count; ++slot) held["a"][slot] = {slot + 1, "old"};
  return held;
}

TEST(Preemption, TakesTheLargestNumberThenTheYoungestAndNoMoreThanItNeeds) {
  const std::vector<RunningTask> running{runs(1, 50, 10), runs(2, 60, 10), runs(3, 50, 30), runs(4, 50, 20)};
  const HeldSlots held = each_a_slot_of_a(4);
  EXPECT_THAT(victims({wants(1, {4}, 10)}, held, running), ElementsAre(2));
  EXPECT_THAT(victims({wants(2, {4}, 10)}, held, running), ElementsAre(2, 3));
  EXPECT_THAT(victims({wants(3, {4}, 10)}, held, running), ElementsAre(2, 3, 4));
}

TEST(Preemption, TakesNobodyWhoseNumberIsNotLargerNorWhoCannotYield) {
  const HeldSlots held = each_a_slot_of_a(2);
  EXPECT_THAT(victims({wants(1, {2}, 50)}, held, {runs(1, 50, 0), runs(2, 40, 0)}), IsEmpty());
  RunningTask mock = runs(1, 90, 0);
  mock.can_yield = false;
  EXPECT_THAT(victims({wants(1, {2}, 50)}, held, {mock, runs(2, 40, 0)}), IsEmpty());
  EXPECT_THAT(victims({wants(2, {2}, 50)}, held, {runs(1, 90, 0), runs(2, 40, 0)}), IsEmpty())
      << "one of the two would not help";
}

TEST(Preemption, AsksNobodyWhereThereWillBeRoomAnyway) {
  RunningTask leaving = runs(1, 20, 0);
  leaving.is_leaving = true;
  EXPECT_THAT(victims({wants(1, {2}, 10)}, each_a_slot_of_a(2), {leaving, runs(2, 90, 0)}), IsEmpty());
  EXPECT_THAT(victims({wants(1, {2}, 10)}, each_a_slot_of_a(1), {runs(1, 90, 0)}), IsEmpty()) << "a slot is free";
}

TEST(Preemption, SparesThoseWhoseSlotsDoNotHelp) {
  // Two slots of one agent are needed: task 9 on the small agent would stop for nothing.
  const HeldSlots held{{"a", {{0, {1, "old"}}, {1, {2, "old"}}}}, {"b", {{0, {9, "old"}}}}};
  EXPECT_THAT(victims({wants(2, {2, 1}, 10)}, held, {runs(9, 90, 0), runs(1, 50, 0), runs(2, 60, 0)}),
              ElementsAre(2, 1));
}

TEST(Preemption, LeavesToEarlierTasksWhatTheyReserve) {
  const HeldSlots held = each_a_slot_of_a(2);
  const std::vector<RunningTask> running{runs(1, 50, 0), runs(2, 50, 0)};
  EXPECT_THAT(victims({wants(2, {2}, 5), wants(1, {2}, 10)}, held, running), IsEmpty());
}

class PreemptingLedger : public LedgerTest {
 protected:
  static TaskRequest yielding(int slots, int priority, bool preemption = true) {
    TaskRequest result = request(slots, priority);
    result.can_yield = true;
    result.preemption = preemption;
    return result;
  }
};

TEST_F(PreemptingLedger, TheVictimIsAskedGivesUpItsSlotsAndComesBack) {
  Ledger ledger = open();
  const TaskId low = ledger.submit(yielding(2, 50));
  ASSERT_TRUE(ledger.try_claim(low));
  const TaskId high = ledger.submit(yielding(2, 10));
  Waiting waiting;
  EXPECT_FALSE(ledger.try_claim(high, &waiting));
  EXPECT_THAT(waiting.reason, HasSubstr("task 1 (test) holds 2 of 2 slots of node; task 1 saves and makes room"));
  EXPECT_EQ(ledger.orders(low).yield, "preempted by task 2 (test)");
  ledger.requeue(low, "preempted by task 2 (test)");
  EXPECT_EQ(ledger.orders(low).yield, "");
  EXPECT_EQ(state(ledger, low), TaskState::kQueued);
  EXPECT_TRUE(ledger.find(low)->claim.empty());
  EXPECT_FALSE(ledger.try_claim(low)) << "the other goes first";
  EXPECT_TRUE(ledger.try_claim(high));
  EXPECT_EQ(ledger.orders(high).yield, "");
  ledger.end(high, TaskState::kDone, "", 0);
  EXPECT_TRUE(ledger.try_claim(low));
}

TEST_F(PreemptingLedger, NobodyIsAskedWhereEitherClusterFileForbidsIt) {
  Ledger ledger = open();
  const TaskId closed = ledger.submit(yielding(2, 50, false));
  ASSERT_TRUE(ledger.try_claim(closed));
  const TaskId high = ledger.submit(yielding(2, 10));
  EXPECT_FALSE(ledger.try_claim(high));
  EXPECT_EQ(ledger.orders(closed).yield, "");
  ledger.end(closed, TaskState::kDone, "", 0);
  ledger.end(high, TaskState::kDone, "", 0);
  const TaskId open_one = ledger.submit(yielding(2, 50));
  ASSERT_TRUE(ledger.try_claim(open_one));
  const TaskId modest = ledger.submit(yielding(2, 10, false));
  EXPECT_FALSE(ledger.try_claim(modest));
  EXPECT_EQ(ledger.orders(open_one).yield, "");
}

TEST_F(PreemptingLedger, APausedTaskIsPassedOverUntilItIsActivated) {
  Ledger ledger = open();
  const TaskId first = ledger.submit(yielding(2, 10, false));
  const TaskId second = ledger.submit(yielding(2, 50, false));
  EXPECT_TRUE(ledger.set_paused(first, true));
  EXPECT_FALSE(ledger.set_paused(first, true)) << "it is already";
  EXPECT_EQ(state(ledger, first), TaskState::kPaused);
  Waiting waiting;
  EXPECT_FALSE(ledger.try_claim(first, &waiting));
  EXPECT_EQ(waiting.reason, "dtrain task activate 1 lets it go on");
  ASSERT_TRUE(ledger.try_claim(second));
  EXPECT_TRUE(ledger.set_paused(second, true));
  EXPECT_EQ(state(ledger, second), TaskState::kStarting) << "it has to save first";
  EXPECT_EQ(ledger.orders(second).yield, "dtrain task pause");
  ledger.requeue(second, "dtrain task pause");
  EXPECT_EQ(state(ledger, second), TaskState::kPaused);
  EXPECT_TRUE(ledger.set_paused(first, false));
  EXPECT_TRUE(ledger.try_claim(first));
}

TEST_F(PreemptingLedger, WhatCannotBePausedIsRefused) {
  Ledger ledger = open();
  EXPECT_THROW(ledger.set_paused(7, true), ConfigError);
  const TaskId mock = ledger.submit(request(1));
  EXPECT_THROW(ledger.set_paused(mock, true), ConfigError);
  TaskRequest by_slurm = yielding(1, 42);
  by_slurm.placed_by_others = true;
  EXPECT_THROW(ledger.set_paused(ledger.submit(by_slurm), true), ConfigError);
  const TaskId ended = ledger.submit(yielding(1, 42));
  ledger.end(ended, TaskState::kDone, "", 0);
  EXPECT_FALSE(ledger.set_paused(ended, true));
}

TEST_F(PreemptingLedger, ATaskIsAskedToGoOnWithAnotherNumberOfSlots) {
  Ledger ledger = open();
  const TaskId task = ledger.submit(yielding(1, 42));
  ASSERT_TRUE(ledger.try_claim(task));
  EXPECT_EQ(ledger.orders(task).resize, std::nullopt);
  EXPECT_FALSE(ledger.request_slots(task, 1, "dtrain task resize")) << "it has one";
  EXPECT_TRUE(ledger.request_slots(task, 2, "dtrain task resize"));
  EXPECT_FALSE(ledger.request_slots(task, 2, "dtrain task resize")) << "it is asked already";
  EXPECT_EQ(ledger.orders(task).resize, (Resize{2, "dtrain task resize"}));
  EXPECT_EQ(ledger.find(task)->resize, (Resize{2, "dtrain task resize"}));
  EXPECT_EQ(ledger.find(task)->slots, 1) << "it still has to save";
  const TaskRequest two = yielding(2, 42);
  ledger.requeue(task, "dtrain task resize", &two);
  EXPECT_EQ(ledger.orders(task).resize, std::nullopt);
  EXPECT_EQ(ledger.find(task)->slots, 2);
  const auto claim = ledger.try_claim(task);
  ASSERT_TRUE(claim);
  EXPECT_THAT(claim->front().slots, ElementsAre(0, 1));
  EXPECT_EQ(ledger.find(task)->resize_refused, "");
}

TEST_F(PreemptingLedger, AnOrderForSlotsIsReplacedWithdrawnOrRefused) {
  Ledger ledger = open();
  const TaskId task = ledger.submit(yielding(1, 42));
  ASSERT_TRUE(ledger.try_claim(task));
  EXPECT_TRUE(ledger.request_slots(task, 3, "a"));
  EXPECT_TRUE(ledger.request_slots(task, 2, "b"));
  EXPECT_EQ(ledger.orders(task).resize, (Resize{2, "b"}));
  ledger.refuse_slots(task, 3, "3 never fit");
  EXPECT_EQ(ledger.orders(task).resize, (Resize{2, "b"})) << "the answer is to the order before";
  EXPECT_TRUE(ledger.request_slots(task, 1, "c"));
  EXPECT_EQ(ledger.orders(task).resize, std::nullopt) << "it has one slot still";
  EXPECT_TRUE(ledger.request_slots(task, 2, "d"));
  ledger.refuse_slots(task, 2, "2 never fit");
  EXPECT_EQ(ledger.orders(task).resize, std::nullopt);
  EXPECT_EQ(ledger.find(task)->resize_refused, "2 never fit");
  EXPECT_TRUE(ledger.request_slots(task, 2, "e")) << "it may be asked again";
  EXPECT_EQ(ledger.find(task)->resize_refused, "");
}

TEST_F(PreemptingLedger, ATaskThatStopsForOneNumberIsAskedForItsOldOne) {
  Ledger ledger = open();
  const TaskId task = ledger.submit(yielding(1, 42));
  ASSERT_TRUE(ledger.try_claim(task));
  EXPECT_TRUE(ledger.request_slots(task, 2, "a"));
  ledger.set_state(task, TaskState::kStopping, "a");
  EXPECT_TRUE(ledger.request_slots(task, 1, "b"));
  const TaskRequest two = yielding(2, 42);
  ledger.requeue(task, "a", &two);
  EXPECT_EQ(ledger.orders(task).resize, (Resize{1, "b"}));
}

TEST_F(PreemptingLedger, OtherLaunchesSeeTheNewNumberOfATaskThatIsQueued) {
  Ledger ledger = open();
  Ledger other = open();
  const TaskId first = ledger.submit(yielding(1, 10, false));
  const TaskId later = other.submit(yielding(1, 50, false));
  EXPECT_FALSE(other.try_claim(later)) << "the first one could use either slot";
  EXPECT_TRUE(other.request_slots(first, 3, "a"));
  EXPECT_EQ(ledger.orders(first).resize, (Resize{3, "a"}));
  TaskRequest three = yielding(3, 10, false);
  ledger.requeue(first, "a", &three);
  EXPECT_TRUE(other.try_claim(later)) << "the first one fits nowhere";
}

TEST_F(PreemptingLedger, WhatCannotBeResizedIsRefused) {
  Ledger ledger = open();
  EXPECT_THROW(ledger.request_slots(7, 2, ""), ConfigError);
  EXPECT_THROW(ledger.request_slots(ledger.submit(request(1)), 2, ""), ConfigError) << "a mock run";
  TaskRequest by_slurm = yielding(1, 42);
  by_slurm.placed_by_others = true;
  EXPECT_THROW(ledger.request_slots(ledger.submit(by_slurm), 2, ""), ConfigError);
  const TaskId ended = ledger.submit(yielding(1, 42));
  EXPECT_THROW(ledger.request_slots(ended, 0, ""), ConfigError);
  ledger.end(ended, TaskState::kDone, "", 0);
  EXPECT_FALSE(ledger.request_slots(ended, 2, ""));
}

}  // namespace
}  // namespace dtrain::scheduler
