// Whose turn it is, as pure functions; place() over every state of what is free is the oracle.
#include "queue.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/scheduler/cluster_agents.h"
#include "eligible.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TaskRequest request(int slots, const std::vector<int>& agents, const std::string& name = "test") {
  TaskRequest result{.name = name};
  result.slots.slots = slots;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    result.agents.push_back({.id = std::string(1, static_cast<char>('a' + i)), .slots = agents[i], .free = agents[i]});
  }
  return result;
}

// Ids are places in the queue, from 1.
Verdict last_of(const std::vector<TaskRequest>& requests, const HeldSlots& held) {
  std::vector<QueuedTask> queue;
  for (const TaskRequest& one : requests) queue.push_back({static_cast<TaskId>(queue.size() + 1), &one});
  return judge(queue, held);
}

const Holder kOther{77, "other"};

TEST(Queue, TheFirstTakesTheLowestFreeSlots) {
  const Verdict verdict = last_of({request(2, {4})}, {{"a", {{0, kOther}, {2, kOther}}}});
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(*verdict.claim, (Claim{{"a", {1, 3}}}));
}

TEST(Queue, SlotsOnSeveralAgentsComeInTheOrderOfTheRanks) {
  const Verdict verdict = last_of({request(4, {2, 2, 1})}, {});
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(*verdict.claim, (Claim{{"a", {0, 1}}, {"b", {0, 1}}}));
}

TaskRequest on_gpus(int slots, const std::vector<std::string>& gpus, const std::string& agent = "a") {
  TaskRequest result = request(slots, {static_cast<int>(gpus.size())});
  result.agents[0].id = agent;
  result.agents[0].gpus = gpus;
  return result;
}

TEST(Queue, AGpuIsTakenByItsUuid) {
  const HeldSlots second{{"GPU-2", {{0, kOther}}}};
  const Verdict verdict = last_of({on_gpus(2, {"GPU-1", "GPU-2", "GPU-3"})}, second);
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(*verdict.claim, (Claim{{"a", {0, 2}, {"GPU-1", "GPU-3"}}}));
  // Another launch sees it with another number (CUDA_VISIBLE_DEVICES), on an agent of another name.
  const Verdict hidden = last_of({on_gpus(1, {"GPU-2"}, "b")}, second);
  EXPECT_FALSE(hidden.claim);
  EXPECT_EQ(hidden.waiting.reason, "task 77 (other) holds 1 of 1 slot of b");
}

TEST(Queue, CoresAndGpusOfOneAgentAreNotTheSameSlots) {
  EXPECT_TRUE(last_of({on_gpus(2, {"GPU-1", "GPU-2"})}, {{"a", {{0, kOther}, {1, kOther}}}}).claim);
  EXPECT_TRUE(last_of({request(2, {2})}, {{"GPU-1", {{0, kOther}}}}).claim);
  const HeldSlots taken{{"GPU-1", {{0, kOther}}}};
  EXPECT_TRUE(last_of({on_gpus(2, {"GPU-1", "GPU-2"}), request(2, {2})}, taken).claim)
      << "who waits for GPUs keeps no cores free";
  EXPECT_FALSE(last_of({on_gpus(2, {"GPU-1", "GPU-2"}), on_gpus(1, {"GPU-2"}, "b")}, taken).claim)
      << "the first task goes first";
}

TEST(Queue, WhoFindsNoRoomIsToldWhoHoldsIt) {
  const Verdict verdict = last_of({request(2, {2})}, {{"a", {{1, kOther}}}});
  EXPECT_FALSE(verdict.claim);
  EXPECT_THAT(verdict.waiting.behind, ElementsAre(77));
  EXPECT_EQ(verdict.waiting.reason, "task 77 (other) holds 1 of 2 slots of a");
}

TEST(Queue, NobodyTakesWhatTheHeadCouldUse) {
  const HeldSlots one_on_b{{"b", {{0, kOther}}}};
  const TaskRequest head = request(4, {2, 4});  // only b can hold it
  const Verdict on_a = last_of({head, request(2, {2, 4})}, one_on_b);
  ASSERT_TRUE(on_a.claim);
  EXPECT_EQ(*on_a.claim, (Claim{{"a", {0, 1}}}));
  const Verdict on_b = last_of({head, request(3, {2, 4})}, one_on_b);
  EXPECT_FALSE(on_b.claim) << "b has three free slots, but the head waits for them";
  EXPECT_THAT(on_b.waiting.behind, ElementsAre(1));
  EXPECT_EQ(on_b.waiting.reason, "task 1 (test) goes first");
}

TEST(Queue, TheSecondIsNotOvertakenEither) {
  // The head waits for b; the second for a, where one slot is taken; the third would fit there.
  const HeldSlots held{{"a", {{0, kOther}}}, {"b", {{0, kOther}}}};
  TaskRequest head = request(1, {2, 1});
  head.agents = {{.id = "b", .slots = 1, .free = 1}};
  const Verdict third = last_of({head, request(2, {2, 1}), request(1, {2, 1})}, held);
  EXPECT_FALSE(third.claim);
  EXPECT_THAT(third.waiting.behind, ElementsAre(1, 2));
}

TEST(Queue, APoolOfItsOwnIsNotHeldUp) {
  TaskRequest mine = request(1, {2, 1});
  mine.agents[1].resource_pool = "debug";
  mine.slots.resource_pool = "debug";
  TaskRequest head = request(2, {2, 1});
  head.agents[1].resource_pool = "debug";
  const Verdict verdict = last_of({head, mine}, {{"a", {{0, kOther}}}});
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(*verdict.claim, (Claim{{"b", {0}}}));
}

TEST(Queue, MaxSlotsHoldsUpItsOwnExperimentAlone) {
  TaskRequest limited = request(2, {8}, "mnist");
  limited.max_slots = 3;
  const HeldSlots held{{"a", {{0, {5, "mnist", 2}}, {1, {5, "mnist", 2}}}}};
  const Verdict waits = last_of({limited}, held);
  EXPECT_FALSE(waits.claim);
  EXPECT_THAT(waits.waiting.behind, ElementsAre(5));
  EXPECT_EQ(waits.waiting.reason, "task 5 (mnist) has 2 of the 3 slots that max_slots allows");
  EXPECT_TRUE(last_of({limited, request(6, {8}, "other")}, held).claim);
}

TEST(Queue, WhatMaxSlotsLeavesGoesToTheFirstOfThatName) {
  TaskRequest first = request(4, {4}, "mnist");  // a is partly taken: it waits
  first.max_slots = 4;
  TaskRequest second = request(1, {4, 1}, "mnist");
  second.agents[1].id = "z";  // which the first request does not have
  second.max_slots = 4;
  const Verdict verdict = last_of({first, second}, {{"a", {{0, kOther}}}});
  EXPECT_FALSE(verdict.claim);
  EXPECT_THAT(verdict.waiting.behind, ElementsAre(1));
  EXPECT_THAT(verdict.waiting.reason, HasSubstr("max_slots"));
}

TEST(Queue, ALaunchThatSeesFewerSlotsDoesNotMindTheOthers) {
  const Verdict verdict = last_of({request(1, {2})}, {{"a", {{0, kOther}, {5, kOther}}}});
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(*verdict.claim, (Claim{{"a", {1}}}));
}

// On a machine of two NUMA nodes whose slots are made of so many cores.
TaskRequest of_cores(int slots, int cores_per_slot, int cores, const std::string& name = "test") {
  TaskRequest result = request(slots, {cores}, name);
  result.slots.cores_per_slot = cores_per_slot;
  for (int core = 0; core < cores; ++core) result.agents[0].cores.push_back({.number = core, .node = core * 2 / cores});
  return result;
}

// Task 77 with so many slots holds these cores.
HeldSlots held_cores(int slots, const std::vector<int>& cores) {
  HeldSlots held;
  for (const int core : cores) held["a"][core] = {77, "other", slots};
  return held;
}

TEST(QueueOfCores, AutoTakesAllOfThemEvenly) {
  const Verdict verdict = last_of({of_cores(2, 0, 8)}, {});
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(*verdict.claim, (Claim{{"a", {0, 1}, {}, {{0, 1, 2, 3}, {4, 5, 6, 7}}}}));
}

TEST(QueueOfCores, SeveralTasksShareNone) {
  const Verdict verdict = last_of({of_cores(2, 2, 8)}, held_cores(1, {0, 1, 4}));
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(*verdict.claim, (Claim{{"a", {0, 1}, {}, {{2, 3}, {5, 6}}}})) << "each within a node, the fuller one first";
  EXPECT_EQ(keys_of(*verdict.claim).size(), 4u);
}

TEST(QueueOfCores, AutoWaitsAndSaysWhatWouldRunBeside) {
  const Verdict room = last_of({of_cores(1, 0, 8)}, held_cores(1, {0, 1}));
  EXPECT_FALSE(room.claim);
  EXPECT_THAT(room.waiting.behind, ElementsAre(77));
  EXPECT_EQ(room.waiting.reason,
            "task 77 (other) holds 2 of 8 cores of a, and cores_per_slot: auto takes all of them; with "
            "resources.cores_per_slot: 6 it runs beside");
  const Verdict none = last_of({of_cores(2, 0, 8)}, held_cores(2, {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(none.waiting.reason,
            "task 77 (other) holds 8 of 8 cores of a, and cores_per_slot: auto takes all of them; with "
            "resources.cores_per_slot: 2 in each of them they run beside each other");
  const Verdict many = last_of({of_cores(8, 0, 8)}, held_cores(2, {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(many.waiting.reason, "task 77 (other) holds 8 of 8 cores of a, and cores_per_slot: auto takes all of them");
}

TEST(QueueOfCores, ATaskThatNeedsMoreThanIsFreeSaysSo) {
  const Verdict verdict = last_of({of_cores(2, 3, 8)}, held_cores(1, {0, 1, 2}));
  EXPECT_FALSE(verdict.claim);
  EXPECT_EQ(verdict.waiting.reason, "task 77 (other) holds 3 of 8 cores of a, and it needs 2 slots x 3 cores");
}

TEST(QueueOfCores, ALaterTaskDoesNotTakeWhatAutoWaitsFor) {
  const Verdict verdict = last_of({of_cores(1, 0, 8, "first"), of_cores(1, 1, 8)}, held_cores(1, {0}));
  EXPECT_FALSE(verdict.claim);
  EXPECT_EQ(verdict.waiting.reason, "task 1 (first) goes first");
}

TEST(QueueOfCores, MaxSlotsCountsSlots) {
  TaskRequest limited = of_cores(1, 2, 8, "other");
  limited.max_slots = 2;
  EXPECT_TRUE(last_of({limited}, held_cores(1, {0, 1, 2, 3})).claim) << "one slot of four cores";
  limited.max_slots = 1;
  EXPECT_EQ(last_of({limited}, held_cores(1, {0, 1, 2, 3})).waiting.reason,
            "task 77 (other) has 1 of the 1 slots that max_slots allows");
}

TEST(QueueOfCores, MoreSlotsThanCoresWaitForAllAndShareThem) {
  TaskRequest four = of_cores(4, 0, 2);
  four.agents[0].slots = 4;
  EXPECT_FALSE(last_of({four}, held_cores(1, {1})).claim);
  const Verdict verdict = last_of({four}, {});
  ASSERT_TRUE(verdict.claim);
  EXPECT_EQ(verdict.claim->front().cores, (CoreGroups{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(keys_of(*verdict.claim).size(), 2u) << "a core is claimed once";
}

// A launch without a cluster file on a machine that was recorded (tests/topologies).
TaskRequest on_recorded(const std::string& name, int slots, int cores_per_slot, double cpu_limit) {
  Machine machine{.name = "box", .cpu_limit = cpu_limit > 0 ? cpu_limit : 100'000};
  machine.topology.xml = DTRAIN_SOURCE_DIR "/tests/topologies/" + name + ".xml";
  machine.gpus.emplace();
  const SlotDefaults defaults{.slot_type = config::AgentSlotType::kCpu, .least_slots = slots};
  TaskRequest result{.name = "test"};
  result.slots.slots = slots;
  result.slots.cores_per_slot = cores_per_slot;
  result.agents = empty_slots(find_cluster({}, {}, defaults, machine));
  return result;
}

HeldSlots held_by(const Claim& claim, int slots) {
  HeldSlots held;
  for (const SlotKey& key : keys_of(claim)) held[key.name][key.index] = Holder{77, "other", slots};
  return held;
}

// 0: no number is named.
int number_after(const std::string& text, const std::string& words) {
  const auto at = text.find(words);
  return at == std::string::npos ? 0 : std::stoi(text.substr(at + words.size()));
}

bool fit_beside(const TaskRequest& first, const TaskRequest& second) {
  const Verdict one = last_of({first}, {});
  return one.claim && last_of({second}, held_by(*one.claim, first.slots.slots)).claim;
}

// As in docs/cluster.md.
TEST(QueueOfCores, OnTwoSocketsATaskIsToldTheNumber) {
  const auto asks = [](int slots, int each) { return on_recorded("two_sockets_smt", slots, each, 0); };
  const Verdict all = last_of({asks(1, 0)}, {});
  EXPECT_EQ(last_of({asks(1, 0)}, held_by(*all.claim, 1)).waiting.reason,
            "task 77 (other) holds 64 of 64 cores of box, and cores_per_slot: auto takes all of them; with "
            "resources.cores_per_slot: 32 in each of them they run beside each other");
  const Verdict some = last_of({asks(2, 8)}, {});
  EXPECT_EQ(last_of({asks(1, 0)}, held_by(*some.claim, 2)).waiting.reason,
            "task 77 (other) holds 16 of 64 cores of box, and cores_per_slot: auto takes all of them; with "
            "resources.cores_per_slot: 48 it runs beside");
  const Verdict beside = last_of({asks(1, 32)}, held_by(*some.claim, 2));
  ASSERT_TRUE(beside.claim);
  EXPECT_EQ(beside.claim->front().cores.front().front(), 32) << "the socket with enough free cores";
  EXPECT_EQ(beside.claim->front().cores.front().back(), 63);
}

TEST(QueueOfCores, WhatATaskIsToldWouldLetItRunBesideOthers) {
  struct Given {
    std::string name;
    double cpu_limit;
    int units;
  };
  for (const Given& box : {Given{"one_by_four", 0, 4}, Given{"two_sockets_smt", 0, 64}, Given{"four_nodes", 0, 32},
                           Given{"ninety_six", 10, 10}, Given{"hybrid", 0, 12}}) {
    for (const int first : {1, 2, 3}) {
      for (const int second : {1, 2, 3}) {
        SCOPED_TRACE(box.name + ": " + std::to_string(first) + " and " + std::to_string(second));
        const auto asks = [&](int slots, int each) { return on_recorded(box.name, slots, each, box.cpu_limit); };
        const Verdict running = last_of({asks(first, 0)}, {});
        ASSERT_TRUE(running.claim);
        const Verdict waits = last_of({asks(second, 0)}, held_by(*running.claim, first));
        ASSERT_FALSE(waits.claim);
        const std::string& why = waits.waiting.reason;
        const auto held = keys_of(*running.claim).size();
        EXPECT_THAT(why, HasSubstr("task 77 (other) holds " + std::to_string(held) + " of " +
                                   std::to_string(box.units) + " cores of box, and cores_per_slot: auto takes all"));
        const int each = number_after(why, "with resources.cores_per_slot: ");
        if (each == 0) {
          EXPECT_LT(box.units, first + second) << why;
        } else if (why.ends_with(" it runs beside")) {
          EXPECT_TRUE(last_of({asks(second, each)}, held_by(*running.claim, first)).claim) << why;
          EXPECT_FALSE(last_of({asks(second, each + 1)}, held_by(*running.claim, first)).claim) << why;
        } else {
          EXPECT_THAT(why, HasSubstr(" in each of them they run beside each other"));
          EXPECT_TRUE(fit_beside(asks(first, each), asks(second, each))) << why;
          EXPECT_FALSE(fit_beside(asks(first, each + 1), asks(second, each + 1))) << why;
        }
      }
    }
  }
}

// The agents that place() uses for some state of what is free.
std::set<std::string> usable_by_trying(std::vector<AgentSlots> agents, const SlotRequest& slots) {
  std::set<std::string> usable;
  const auto try_from = [&](auto&& self, std::size_t index) -> void {
    if (index == agents.size()) {
      if (const auto placement = place(agents, slots)) {
        for (const AgentShare& share : *placement) usable.insert(share.agent);
      }
      return;
    }
    for (int free = 0; free <= agents[index].slots; ++free) {
      agents[index].free = free;
      self(self, index + 1);
    }
  };
  try_from(try_from, 0);
  return usable;
}

TEST(UsableAgents, AreThoseThatSomePlacementUses) {
  std::mt19937 random(7);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 400; ++round) {
    TaskRequest task = request(1 + up_to(9), {});
    const bool have_cores = up_to(2) == 0;  // no file declares their slots
    task.slots.cores_per_slot = have_cores ? up_to(2) : 0;
    for (int agent = 0; agent <= up_to(4); ++agent) {
      task.agents.push_back({.id = std::string(1, static_cast<char>('a' + agent)), .slots = 1 + up_to(3)});
      if (up_to(5) == 0) task.agents.back().resource_pool = "debug";
      for (int core = 0; have_cores && core < task.agents.back().slots; ++core) {
        task.agents.back().cores.push_back({.number = core});
      }
    }
    task.slots.is_single_node = up_to(4) == 0;
    task.slots.allow_heterogeneous_fits = up_to(1) == 0;
    task.slots.policy = up_to(1) == 0 ? config::FittingPolicy::kBest : config::FittingPolicy::kWorst;
    EXPECT_EQ(usable_agents(task.agents, task.slots), usable_by_trying(task.agents, task.slots)) << "round " << round;
  }
}

// Tasks come, start and end at random: no slot is given twice, no task is overtaken on slots it could use, and
// whichever is first gets its turn once all slots are free.
TEST(Queue, InAnyOrderOfEventsNobodyIsOvertaken) {
  std::mt19937 random(11);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  int started = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<int> sizes;
    for (int agent = 0; agent <= up_to(3); ++agent) sizes.push_back(1 + up_to(3));
    std::vector<std::pair<TaskId, TaskRequest>> queue;
    std::map<TaskId, Claim> running;
    HeldSlots held;
    TaskId last = 0;
    for (int event = 0; event < 80; ++event) {
      if (up_to(1) == 0) {
        TaskRequest task = request(1 + up_to(5), sizes);
        if (place(task.agents, task.slots)) queue.emplace_back(++last, std::move(task));
      } else if (!running.empty() && up_to(2) == 0) {
        const auto ended = std::next(running.begin(), up_to(static_cast<int>(running.size()) - 1));
        for (const ClaimedShare& share : ended->second) {
          for (const int slot : share.slots) ASSERT_EQ(held[share.agent].erase(slot), 1u);
        }
        running.erase(ended);
      }
      if (queue.empty()) continue;
      const auto asks = static_cast<std::size_t>(up_to(static_cast<int>(queue.size()) - 1));
      std::vector<QueuedTask> tasks;
      for (std::size_t i = 0; i <= asks; ++i) tasks.push_back({queue[i].first, &queue[i].second});
      const Verdict verdict = judge(tasks, held);
      if (!verdict.claim) {
        EXPECT_FALSE(verdict.waiting.behind.empty());
        EXPECT_FALSE(asks == 0 && running.empty()) << "the first waits for nobody";
        continue;
      }
      ++started;
      int given = 0;
      for (const ClaimedShare& share : *verdict.claim) {
        for (std::size_t i = 0; i < asks; ++i) {
          EXPECT_FALSE(usable_by_trying(queue[i].second.agents, queue[i].second.slots).contains(share.agent));
        }
        for (const int slot : share.slots) {
          ++given;
          EXPECT_TRUE(held[share.agent].emplace(slot, Holder{tasks.back().id, "test"}).second) << "given twice";
        }
      }
      EXPECT_EQ(given, tasks.back().request->slots.slots);
      running[tasks.back().id] = *verdict.claim;
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(asks));
    }
  }
  EXPECT_GT(started, 300);
}

}  // namespace
}  // namespace dtrain::scheduler
