// What elastic tasks give to others, and what they get from free slots; elastic_schedules_test.cpp plays whole queues.
#include "queue.h"

#include "ledger_fixture.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TaskRequest asks(int priority, int slots, const std::vector<int>& agents, std::optional<Elastic> elastic = {}) {
  TaskRequest result{.name = "test", .priority = priority, .elastic = elastic, .can_yield = true, .preemption = true};
  result.slots.slots = slots;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    result.agents.push_back({.id = std::string(1, static_cast<char>('a' + i)), .slots = agents[i], .free = agents[i]});
  }
  return result;
}

// A queue and what runs beside it.
struct Given {
  std::map<TaskId, TaskRequest> requests;
  std::vector<QueuedTask> queue;
  std::vector<RunningTask> running;
  HeldSlots held;

  void waits(TaskId id, const TaskRequest& request) {
    queue.push_back({id, &requests.emplace(id, request).first->second});
  }
  void runs(TaskId id, const TaskRequest& request, const Claim& claim, int started = 0) {
    const TaskRequest& kept = requests.emplace(id, request).first->second;
    running.push_back({.id = id,
                       .priority = request.priority,
                       .started = std::chrono::seconds(started),
                       .can_yield = request.can_yield,
                       .request = request.elastic ? &kept : nullptr,
                       .claim = claim});
    int slots = 0;
    for (const ClaimedShare& share : claim) slots += static_cast<int>(share.slots.size());
    for (const SlotKey& key : keys_of(claim)) held[key.name][key.index] = {id, request.name, slots};
  }
  std::vector<Yield> yields() const { return choose_yields(queue, held, running); }
  std::optional<Claim> larger(TaskId id) const { return larger_claim(id, queue, held, running); }
};

TEST(Elastic, StartsWithWhatIsFreeAndTakesMoreThanItAsksForOnlyIfNobodyElseCouldUseIt) {
  Given given;
  given.runs(1, asks(50, 1, {4}), {{"a", {2}}});
  given.waits(2, asks(50, 2, {4}, Elastic{1, 2, 4}));
  EXPECT_EQ(judge(given.queue, given.held).claim, (Claim{{"a", {0, 1, 3}}}));
  const TaskRequest other = asks(60, 1, {4});
  const QueuedTask later{3, &other};
  EXPECT_EQ(judge(given.queue, given.held, std::span(&later, 1)).claim, (Claim{{"a", {0, 1}}}));
  given.runs(4, asks(50, 2, {4}), {{"a", {0, 1}}});
  EXPECT_EQ(judge(given.queue, given.held).claim, (Claim{{"a", {3}}}));
  given.runs(5, asks(50, 1, {4}), {{"a", {3}}});
  EXPECT_FALSE(judge(given.queue, given.held).claim);
}

TEST(Elastic, WaitsForItsLeastNumberOnSlotsThatLaterTasksDoNotGet) {
  Given given;
  given.runs(1, asks(50, 2, {4}), {{"a", {0, 1}}});
  given.waits(2, asks(50, 4, {4}, Elastic{3, 4, 4}));
  EXPECT_FALSE(judge(given.queue, given.held).claim);
  given.waits(3, asks(50, 1, {4}));
  EXPECT_EQ(judge(given.queue, given.held).waiting.reason, "task 2 (test) goes first");
}

TEST(Elastic, MaxSlotsLimitsIt) {
  Given given;
  TaskRequest limited = asks(50, 2, {4}, Elastic{2, 2, 4});
  limited.max_slots = 4;
  given.runs(1, asks(50, 1, {4}), {{"a", {0}}});
  given.waits(2, limited);
  EXPECT_EQ(judge(given.queue, given.held).claim, (Claim{{"a", {1, 2, 3}}}));
  given.runs(3, asks(50, 2, {4}), {{"a", {1, 2}}});
  EXPECT_FALSE(judge(given.queue, given.held).claim) << "1 of 4 is left, and it needs 2";
}

TEST(Shrinking, GivesExactlyWhatIsNeededAndNotBelowItsLeastNumber) {
  Given given;
  given.runs(1, asks(50, 4, {4}, Elastic{1, 4, 4}), {{"a", {0, 1, 2, 3}}});
  given.waits(2, asks(10, 2, {4}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {{"a", {0, 1}}}}));
  given.queue.clear();
  given.waits(3, asks(10, 4, {4}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {}})) << "no shrinking makes room for it";
}

TEST(Shrinking, TheLeastUrgentAndTheYoungestGivesFirst) {
  Given given;
  given.runs(1, asks(60, 2, {6}, Elastic{1, 2, 2}), {{"a", {0, 1}}}, 1);
  given.runs(2, asks(50, 2, {6}, Elastic{1, 2, 2}), {{"a", {2, 3}}}, 3);
  given.runs(3, asks(50, 2, {6}, Elastic{1, 2, 2}), {{"a", {4, 5}}}, 2);
  given.waits(4, asks(10, 2, {6}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {{"a", {0}}}}, Yield{2, {{"a", {2}}}}));
  given.queue.clear();
  given.waits(5, asks(50, 2, {6}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {}})) << "one slot of the only less urgent task is too few";
}

TEST(Shrinking, ComesBeforeStoppingAndBesideIt) {
  Given given;
  given.runs(1, asks(60, 1, {4}), {{"a", {0}}});
  given.runs(2, asks(50, 3, {4}, Elastic{1, 3, 3}), {{"a", {1, 2, 3}}});
  given.waits(3, asks(10, 2, {4}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{2, {{"a", {1}}}})) << "the less urgent task would have to stop";
  given.queue.clear();
  given.waits(4, asks(10, 3, {4}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {}}, Yield{2, {{"a", {1}}}}));
}

TEST(Shrinking, AnElasticTaskAsksForTheSlotsItWantsAndStopsOthersOnlyForItsLeastNumber) {
  Given given;
  given.runs(1, asks(50, 3, {4}, Elastic{1, 3, 3}), {{"a", {0, 1, 2}}});
  given.runs(2, asks(50, 1, {4}), {{"a", {3}}});
  given.waits(3, asks(10, 4, {4}, Elastic{1, 4, 4}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {{"a", {0}}}})) << "two slots, and nobody stops";
  given.running[0].request = nullptr;
  EXPECT_THAT(given.yields(), ElementsAre(Yield{2, {}})) << "one slot, of the youngest";
}

TEST(Shrinking, WhoWasAskedAlreadyIsCountedAndNotAskedAgain) {
  Given given;
  given.runs(1, asks(50, 4, {6}, Elastic{1, 4, 4}), {{"a", {0, 1, 2, 3}}});
  given.runs(2, asks(50, 2, {6}, Elastic{1, 2, 2}), {{"a", {4, 5}}});
  given.running[0].keeps = Claim{{"a", {0, 1}}};
  given.waits(3, asks(10, 2, {6}));
  EXPECT_THAT(given.yields(), IsEmpty());
  given.queue.clear();
  given.waits(4, asks(10, 3, {6}));
  EXPECT_THAT(given.yields(), ElementsAre(Yield{2, {{"a", {4}}}}));
}

TEST(Shrinking, LeavesTheAgentThatIsNeeded) {
  Given given;
  given.runs(1, asks(50, 4, {2, 2, 3}, Elastic{2, 4, 4}), {{"a", {0, 1}}, {"b", {0, 1}}});
  given.runs(2, asks(50, 3, {2, 2, 3}), {{"c", {0, 1, 2}}});
  TaskRequest one_place = asks(10, 2, {2, 2, 3});
  one_place.agents.erase(one_place.agents.begin());  // it sees b and c alone
  given.waits(3, one_place);
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {{"a", {0, 1}}}}));
}

TEST(Shrinking, OfCoresGivesWholeSlotsAndNothingWhereEachRunHasAllCores) {
  Given given;
  TaskRequest elastic = asks(50, 4, {8}, Elastic{1, 4, 4});
  for (int core = 0; core < 8; ++core) elastic.agents[0].cores.push_back({.number = core});
  elastic.slots.cores_per_slot = 2;
  TaskRequest waits = elastic;
  waits.priority = 10;
  waits.elastic.reset();
  waits.slots.slots = 1;
  waits.slots.cores_per_slot = 3;
  given.runs(1, elastic, {{"a", {0, 1, 2, 3}, {}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}}});
  given.waits(2, waits);
  EXPECT_THAT(given.yields(), ElementsAre(Yield{1, {{"a", {0, 1}, {}, {{0, 1}, {2, 3}}}}}));
}

TEST(Growing, TakesFreeSlotsThatNoWaitingTaskCouldUse) {
  Given given;
  given.runs(1, asks(50, 2, {2, 4}, Elastic{1, 2, 4}), {{"b", {1, 2}}});
  EXPECT_EQ(given.larger(1), (Claim{{"b", {0, 1, 2, 3}}}));
  TaskRequest on_b = asks(90, 4, {2, 4});
  on_b.slots.is_single_node = true;
  given.waits(2, on_b);
  EXPECT_EQ(given.larger(1), std::nullopt) << "the less urgent task waits for b";
  given.queue.clear();
  given.runs(3, asks(50, 2, {2, 4}), {{"b", {0, 3}}});
  EXPECT_EQ(given.larger(1), std::nullopt);
}

TEST(Growing, TheMostUrgentAndTheOldestGrowsFirst) {
  Given given;
  given.runs(1, asks(50, 1, {4}, Elastic{1, 1, 3}), {{"a", {0}}});
  given.runs(2, asks(40, 1, {4}, Elastic{1, 1, 3}), {{"a", {1}}});
  EXPECT_EQ(given.larger(2), (Claim{{"a", {1, 2, 3}}})) << "its own and the free ones";
  EXPECT_EQ(given.larger(1), std::nullopt);
  given.requests.at(2).elastic->max = 1;
  EXPECT_EQ(given.larger(1), (Claim{{"a", {0, 2, 3}}}));
}

class ElasticLedger : public LedgerTest {
 protected:
  static TaskRequest task(int slots, int priority, std::optional<Elastic> elastic = {}) {
    return asks(priority, slots, {4}, elastic);
  }
  // The launcher does what it is asked for.
  static void carry_out(Ledger& ledger, TaskId id, TaskRequest request) {
    const Orders orders = ledger.orders(id);
    ASSERT_TRUE(orders.resize);
    request.slots.slots = orders.resize->slots;
    ledger.set_state(id, TaskState::kStopping, orders.resize->why);
    ledger.requeue(id, orders.resize->why, &request);
  }
  static void train(Ledger& ledger, TaskId id) { ledger.set_state(id, TaskState::kRunning); }
};

TEST_F(ElasticLedger, GivesThreeOfFourSlotsAndTakesThemBack) {
  Ledger ledger = open();
  const TaskRequest elastic = task(4, 50, Elastic{1, 4, 4});
  const TaskId low = ledger.submit(elastic);
  ASSERT_EQ(ledger.try_claim(low), (Claim{{"a", {0, 1, 2, 3}}}));
  train(ledger, low);
  const TaskId high = ledger.submit(task(3, 10));
  Waiting waiting;
  EXPECT_FALSE(ledger.try_claim(high, &waiting));
  EXPECT_THAT(waiting.reason, testing::EndsWith("task 1 saves and makes room"));
  EXPECT_EQ(ledger.orders(low).yield, "") << "it does not stop";
  EXPECT_EQ(ledger.orders(low).resize, (Resize{1, "shrinking for task 2 (test)"}));
  carry_out(ledger, low, elastic);
  EXPECT_EQ(ledger.find(low)->claim, (Claim{{"a", {0}}})) << "nobody else gets it";
  EXPECT_EQ(ledger.try_claim(high), (Claim{{"a", {1, 2, 3}}}));
  EXPECT_EQ(ledger.try_claim(low), (Claim{{"a", {0}}}));
  train(ledger, low);
  EXPECT_EQ(ledger.find(low)->slots, 1);
  EXPECT_EQ(ledger.find(low)->least, 1);
  EXPECT_EQ(ledger.find(low)->most, 4);
  clock_.elapsed += 61s;
  ledger.orders(low);
  EXPECT_EQ(ledger.orders(low).resize, std::nullopt) << "nothing is free";
  ledger.end(high, TaskState::kDone, "", 0);
  clock_.elapsed += 1s;
  ledger.orders(low);
  EXPECT_EQ(ledger.orders(low).resize, (Resize{4, "growing"}));
  carry_out(ledger, low, elastic);
  EXPECT_EQ(ledger.try_claim(low), (Claim{{"a", {0, 1, 2, 3}}}));
}

TEST_F(ElasticLedger, TrainsForSomeTimeBeforeItGrows) {
  Ledger ledger = open();
  const TaskId other = ledger.submit(task(3, 50));
  ASSERT_TRUE(ledger.try_claim(other));
  const TaskId id = ledger.submit(task(4, 50, Elastic{1, 4, 4, 10s}));
  ASSERT_EQ(ledger.try_claim(id), (Claim{{"a", {3}}}));
  train(ledger, id);
  ledger.end(other, TaskState::kDone, "", 0);
  clock_.elapsed += 9s;
  ledger.orders(id);
  EXPECT_EQ(ledger.orders(id).resize, std::nullopt);
  clock_.elapsed += 1s;
  ledger.orders(id);
  EXPECT_EQ(ledger.orders(id).resize, (Resize{4, "growing"}));
}

TEST_F(ElasticLedger, GrowsByWhatIsStillFreeAndNeverLosesWhatItHad) {
  Ledger ledger = open();
  const TaskRequest elastic = task(1, 50, Elastic{1, 1, 4, 0s});
  const TaskId other = ledger.submit(task(3, 50));
  ASSERT_TRUE(ledger.try_claim(other));
  const TaskId id = ledger.submit(elastic);
  ASSERT_TRUE(ledger.try_claim(id));
  train(ledger, id);
  ledger.end(other, TaskState::kDone, "", 0);
  ledger.orders(id);
  EXPECT_EQ(ledger.orders(id).resize, (Resize{4, "growing"}));
  const TaskId new_one = ledger.submit(task(2, 90));
  ASSERT_TRUE(ledger.try_claim(new_one)) << "the slots were free";
  carry_out(ledger, id, elastic);
  EXPECT_THAT(ledger.try_claim(id)->front().slots, testing::SizeIs(2));
}

TEST_F(ElasticLedger, AnOrderThatItsOwnerRefusesEndsItsElasticity) {
  Ledger ledger = open();
  const TaskId low = ledger.submit(task(4, 50, Elastic{1, 4, 4}));
  ASSERT_TRUE(ledger.try_claim(low));
  train(ledger, low);
  const TaskId high = ledger.submit(task(3, 10));
  EXPECT_FALSE(ledger.try_claim(high));
  ledger.refuse_slots(low, 1, "too large for one");
  EXPECT_EQ(ledger.orders(low).resize, std::nullopt);
  EXPECT_FALSE(ledger.try_claim(high));
  EXPECT_EQ(ledger.orders(low).yield, "preempted by task 2 (test)") << "it stops, as others do";
  ledger.requeue(low, "preempted");
  EXPECT_TRUE(ledger.try_claim(high));
  EXPECT_FALSE(ledger.try_claim(low)) << "it needs four slots now";
  EXPECT_TRUE(ledger.request_slots(low, 4, "dtrain task resize")) << "a person makes it elastic again";
  EXPECT_EQ(ledger.try_claim(low), (Claim{{"a", {3}}}));
}

TEST_F(ElasticLedger, APersonSetsTheMostSlots) {
  Ledger ledger = open();
  const TaskRequest elastic = task(4, 50, Elastic{1, 4, 4});
  const TaskId id = ledger.submit(elastic);
  ASSERT_TRUE(ledger.try_claim(id));
  train(ledger, id);
  EXPECT_THROW(ledger.request_slots(id, 5, ""), ConfigError);
  EXPECT_TRUE(ledger.request_slots(id, 2, "dtrain task resize"));
  EXPECT_FALSE(ledger.request_slots(id, 2, "dtrain task resize"));
  carry_out(ledger, id, elastic);
  EXPECT_EQ(ledger.try_claim(id), (Claim{{"a", {0, 1}}}));
  train(ledger, id);
  clock_.elapsed += 100s;
  ledger.orders(id);
  EXPECT_EQ(ledger.orders(id).resize, std::nullopt) << "two are the most now";
  EXPECT_TRUE(ledger.request_slots(id, 3, "dtrain task resize"));
  EXPECT_EQ(ledger.orders(id).resize, (Resize{3, "growing"}));
}

TEST_F(ElasticLedger, APausedTaskGivesUpWhatItHadKept) {
  Ledger ledger = open();
  const TaskRequest elastic = task(4, 50, Elastic{1, 4, 4});
  const TaskId low = ledger.submit(elastic);
  ASSERT_TRUE(ledger.try_claim(low));
  train(ledger, low);
  const TaskId high = ledger.submit(task(3, 10));
  EXPECT_FALSE(ledger.try_claim(high));
  carry_out(ledger, low, elastic);
  ledger.set_paused(low, true);
  EXPECT_THAT(ledger.find(low)->claim, IsEmpty());
  EXPECT_FALSE(ledger.try_claim(low));
  const TaskId all = ledger.submit(task(4, 5));
  EXPECT_TRUE(ledger.try_claim(all));
}

}  // namespace
}  // namespace dtrain::scheduler
