// The ledger in real files, shared by real processes.
#include <fstream>

#include "ledger_fixture.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(LedgerTest, ATaskFromSubmissionToItsEnd) {
  Ledger ledger = open();
  const TaskId id = ledger.submit(request(2, 7));
  EXPECT_EQ(id, 1);
  EXPECT_EQ(state(ledger, id), TaskState::kQueued);
  const auto claim = ledger.try_claim(id);
  ASSERT_TRUE(claim);
  EXPECT_EQ(*claim, (Claim{{"node", {0, 1}}}));
  EXPECT_EQ(state(ledger, id), TaskState::kStarting);
  ledger.add_process(id, "rank 0", ::getpid());
  ledger.set_state(id, TaskState::kRunning);
  ledger.set_state(id, TaskState::kRunning);
  ledger.end(id, TaskState::kDone, "all done", 0);

  const auto task = ledger.find(id);
  ASSERT_TRUE(task);
  EXPECT_EQ(task->name, "test");
  EXPECT_EQ(task->state, TaskState::kDone);
  EXPECT_EQ(task->reason, "all done");
  EXPECT_EQ(task->priority, 7);
  EXPECT_EQ(task->slots, 2);
  EXPECT_EQ(task->claim, *claim) << "it is still known what it had";
  EXPECT_EQ(task->run_dir, "/runs/0001-test");
  EXPECT_EQ(task->launcher_pid, ::getpid());
  EXPECT_EQ(task->exit_code, 0);
  EXPECT_LE(task->submitted, *task->started);
  EXPECT_LE(*task->started, *task->ended);
  std::vector<std::string> states;
  for (const StateChange& change : ledger.history(id)) states.push_back(to_string(change.state));
  EXPECT_THAT(states, ElementsAre("queued", "starting", "running", "done"));
  EXPECT_EQ(raw().value("SELECT count(*) FROM claims"), 0);
  EXPECT_EQ(ledger.submit(request(1)), 2);
  EXPECT_FALSE(ledger.find(3));
}

TEST_F(LedgerTest, AGpuHasOneHolderWhateverItsNumber) {
  Ledger ledger = open();
  TaskRequest both = request(2);
  both.agents[0].gpus = {"GPU-1", "MIG-GPU-2/1/0"};
  const TaskId first = ledger.submit(both);
  const auto claim = ledger.try_claim(first);
  ASSERT_TRUE(claim);
  EXPECT_EQ(*claim, (Claim{{"node", {0, 1}, {"GPU-1", "MIG-GPU-2/1/0"}}}));
  EXPECT_EQ(ledger.find(first)->claim, *claim);
  TaskRequest one = request(1);
  one.agents = {{.id = "other", .slots = 1, .free = 1, .gpus = {"MIG-GPU-2/1/0"}}};
  const TaskId second = ledger.submit(one);
  EXPECT_FALSE(ledger.try_claim(second));
  EXPECT_TRUE(ledger.try_claim(ledger.submit(request(2)))) << "cores of the same agent";
  ledger.end(first, TaskState::kDone, "", 0);
  EXPECT_TRUE(ledger.try_claim(second));
}

TEST_F(LedgerTest, ItIsStillThereWhenItIsOpenedAgain) {
  const TaskId id = open().submit(request(1));
  Ledger again = open();
  EXPECT_EQ(again.list().size(), 1u);
  EXPECT_TRUE(again.try_claim(id));
}

TEST_F(LedgerTest, LowerPriorityNumbersGoFirstThenOlderTasks) {
  Ledger ledger = open();
  const TaskId holder = ledger.submit(request(2));
  ASSERT_TRUE(ledger.try_claim(holder));
  const TaskId late = ledger.submit(request(2, 50));
  const TaskId first = ledger.submit(request(2, 10));
  const TaskId second = ledger.submit(request(2, 10));
  Waiting waiting;
  EXPECT_FALSE(ledger.try_claim(first, &waiting));
  EXPECT_EQ(waiting.reason, "task 1 (test) holds 2 of 2 slots of node");
  EXPECT_THAT(waiting.behind, ElementsAre(holder));
  EXPECT_THAT(ledger.find(late)->waiting->behind, ElementsAre(holder, first, second));
  for (const TaskId next : {first, second, late}) {
    const TaskId before = next == first ? holder : next == second ? first : second;
    for (const TaskId other : {first, second, late}) {
      if (!has_ended(state(ledger, other)) && state(ledger, other) == TaskState::kQueued) {
        EXPECT_FALSE(ledger.try_claim(other));
      }
    }
    ledger.end(before, TaskState::kDone, "", 0);
    for (const TaskId other : {late, second, first}) {  // for every task the same one is next
      if (other == next || state(ledger, other) != TaskState::kQueued) continue;
      EXPECT_FALSE(ledger.try_claim(other, &waiting)) << other << " before " << next;
      EXPECT_THAT(waiting.reason, HasSubstr("first"));
    }
    EXPECT_TRUE(ledger.try_claim(next));
  }
}

TEST_F(LedgerTest, MaxSlotsCountsRunningTasksOfTheName) {
  Ledger ledger = open();
  TaskRequest limited = request(1);
  limited.max_slots = 1;
  const TaskId first = ledger.submit(limited);
  const TaskId second = ledger.submit(limited);
  const TaskId other = ledger.submit(request(1, 99, "other"));
  ASSERT_TRUE(ledger.try_claim(first));
  Waiting waiting;
  EXPECT_FALSE(ledger.try_claim(second, &waiting));
  EXPECT_THAT(waiting.reason, HasSubstr("max_slots"));
  EXPECT_TRUE(ledger.try_claim(other)) << "it holds nobody else up";
  ledger.end(first, TaskState::kFailed, "broken", 1);
  EXPECT_TRUE(ledger.try_claim(second));
}

TEST_F(LedgerTest, CoresAreClaimedOneByOne) {
  Ledger ledger = open();
  const auto of_cores = [](int slots, int cores_per_slot) {
    TaskRequest result = request(slots);
    result.slots.cores_per_slot = cores_per_slot;
    result.agents[0].slots = result.agents[0].free = 4;
    for (int core = 0; core < 4; ++core) result.agents[0].cores.push_back({.number = core, .node = core / 2});
    return result;
  };
  const TaskId first = ledger.submit(of_cores(1, 1));
  const TaskId beside = ledger.submit(of_cores(1, 2));
  const TaskId all = ledger.submit(of_cores(2, 0));
  EXPECT_EQ(ledger.try_claim(first), (Claim{{"node", {0}, {}, {{0}}}}));
  EXPECT_EQ(ledger.find(beside)->cores_per_slot, 2);
  EXPECT_EQ(ledger.try_claim(beside), (Claim{{"node", {0}, {}, {{2, 3}}}}));
  Waiting waiting;
  EXPECT_FALSE(ledger.try_claim(all, &waiting));
  EXPECT_THAT(waiting.reason, HasSubstr("hold 3 of 4 cores of node, and cores_per_slot: auto takes all of them"));
  EXPECT_EQ(ledger.find(beside)->claim, (Claim{{"node", {0}, {}, {{2, 3}}}})) << "as it was written down";
  ledger.end(first, TaskState::kDone, "", 0);
  EXPECT_FALSE(ledger.try_claim(all));
  ledger.end(beside, TaskState::kDone, "", 0);
  EXPECT_EQ(ledger.try_claim(all), (Claim{{"node", {0, 1}, {}, {{0, 1}, {2, 3}}}}));
  EXPECT_EQ(ledger.find(all)->claim, (Claim{{"node", {0, 1}, {}, {{0, 1}, {2, 3}}}}));
}

TEST_F(LedgerTest, WhereOthersPlaceItNothingIsClaimed) {
  Ledger ledger = open();
  ASSERT_TRUE(ledger.try_claim(ledger.submit(request(2))));
  TaskRequest elsewhere = request(16);
  elsewhere.placed_by_others = true;
  const auto claim = ledger.try_claim(ledger.submit(elsewhere));
  ASSERT_TRUE(claim);
  EXPECT_THAT(*claim, IsEmpty());
}

TEST_F(LedgerTest, AKillIsARowThatTheOwnerObeys) {
  Ledger ledger = open();
  const TaskId id = ledger.submit(request(1));
  EXPECT_EQ(ledger.orders(id).kills, 0);
  EXPECT_EQ(open().request_kill(id), KillResult::kAsked);
  EXPECT_EQ(ledger.orders(id).kills, 1);
  EXPECT_EQ(open().request_kill(id), KillResult::kAsked);
  EXPECT_EQ(ledger.orders(id).kills, 2);
  ledger.end(id, TaskState::kInterrupted, "killed", 130);
  EXPECT_EQ(open().request_kill(id), KillResult::kHadEnded);
  EXPECT_THROW(open().request_kill(99), ConfigError);
  EXPECT_THROW(ledger.try_claim(id), Error);
}

TEST_F(LedgerTest, ManyProcessesOpenItAtOnce) {
  std::vector<std::unique_ptr<Child>> children;
  std::vector<pid_t> pids;
  for (int i = 0; i < 20; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      try {
        Ledger ledger = open();
        ledger.end(ledger.submit(request(1)), TaskState::kDone, "", 0);
        ::_exit(0);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        ::_exit(1);
      }
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(open().list().size(), 20u);
  EXPECT_THAT(open().list(Which::kNotEnded), IsEmpty());
}

TEST_F(LedgerTest, FilesThatAreNoneOfOursAreRefused) {
  open();
  raw().execute("PRAGMA user_version = 9");
  try {
    open();
    ADD_FAILURE() << "opened";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("another version of dtrain"));
  }
  for (const char* name : {"ledger.db", "ledger.db-wal", "ledger.db-shm"}) {
    std::filesystem::remove(folder_.path() / "state" / name);
  }
  std::ofstream(folder_.path() / "state" / "ledger.db") << std::string(5000, 'x');
  try {
    open();
    ADD_FAILURE() << "opened";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ledger.db"));
    EXPECT_THAT(error.remedy(), HasSubstr("move the file away"));
  }
}

}  // namespace
}  // namespace dtrain::scheduler
