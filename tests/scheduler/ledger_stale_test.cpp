// What becomes of the tasks of processes that died.
#include <fstream>

#include "ledger_fixture.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(LedgerTest, SlotsOfAKilledLauncherAreFreeOnceItsRanksAreGone) {
  Child rank([] {});
  Child launcher([&] {
    Ledger ledger = open();
    const TaskId id = ledger.submit(request(2));
    if (!ledger.try_claim(id)) throw Error("no claim");
    ledger.add_process(id, "rank 0", rank.pid());
    ledger.set_state(id, TaskState::kRunning);
  });
  const pid_t launcher_pid = launcher.pid();
  Ledger ledger = open();
  const TaskId waiting = ledger.submit(request(1));
  EXPECT_FALSE(ledger.try_claim(waiting));
  EXPECT_EQ(state(ledger, 1), TaskState::kRunning);
  launcher.kill();
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  EXPECT_EQ(ledger.find(1)->reason, "its launcher (pid " + std::to_string(launcher_pid) + ") is gone");
  clock_.ahead = 10min;  // however long it takes
  EXPECT_FALSE(ledger.try_claim(waiting)) << "the rank still runs on its slot";
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  rank.kill();
  clock_.ahead = 11min;
  EXPECT_TRUE(ledger.try_claim(waiting));
  const auto task = ledger.find(1);
  EXPECT_EQ(task->state, TaskState::kFailed);
  EXPECT_EQ(task->exit_code, 1);
  EXPECT_EQ(task->reason, "its launcher (pid " + std::to_string(launcher_pid) + ") is gone without a word");
}

TEST_F(LedgerTest, ARankThatNobodyHadTimeToRecordKeepsItsSlots) {
  std::unique_ptr<Child> launcher;
  launcher = std::make_unique<Child>([&] {
    Ledger ledger = open();
    const TaskId id = ledger.submit(request(2));
    if (!ledger.try_claim(id)) throw Error("no claim");
  });
  const std::string marked = "DTRAIN_LAUNCHER_PID=" + std::to_string(launcher->pid());
  const pid_t rank = ::fork();
  if (rank == 0) {
    const char* const environment[] = {"A=1", marked.c_str(), nullptr};
    ::execle("/bin/sleep", "sleep", "1000", nullptr, environment);
    ::_exit(1);
  }
  launcher->kill();
  Ledger ledger = open();
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  clock_.ahead = 10min;
  EXPECT_TRUE(eventually([&] {  // its environment is seen once it has got to exec
    std::ifstream file("/proc/" + std::to_string(rank) + "/comm");
    std::string name;
    return static_cast<bool>(std::getline(file, name)) && name == "sleep";
  }));
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  ::kill(rank, SIGKILL);
  ::waitpid(rank, nullptr, 0);
  EXPECT_EQ(state(ledger, 1), TaskState::kFailed);
}

TEST_F(LedgerTest, AQueuedTaskOfAKilledLauncherHoldsNobodyUp) {
  Ledger ledger = open();
  const TaskId holder = ledger.submit(request(1));
  ASSERT_TRUE(ledger.try_claim(holder));
  Child launcher([&] { open().submit(request(2, 1)); });
  const TaskId mine = ledger.submit(request(1));
  Waiting waiting;
  EXPECT_FALSE(ledger.try_claim(mine, &waiting)) << "the one before it wants both slots";
  EXPECT_THAT(waiting.behind, ElementsAre(2));
  launcher.kill();
  EXPECT_TRUE(eventually([&] { return ledger.try_claim(mine).has_value(); }));
  EXPECT_EQ(state(ledger, 2), TaskState::kCancelled);
  EXPECT_EQ(ledger.find(2)->exit_code, 130);
}

TEST_F(LedgerTest, AQueuedTaskWhoseLauncherIsStoppedHoldsNobodyUp) {
  Ledger ledger = open();
  ASSERT_TRUE(ledger.try_claim(ledger.submit(request(1))));
  ledger.submit(request(2, 1));  // nobody asks for it again
  clock_.ahead = 1min;           // longer than a lease
  EXPECT_TRUE(ledger.try_claim(ledger.submit(request(1))));
  EXPECT_EQ(state(ledger, 2), TaskState::kQueued) << "it may go on later";
}

TEST_F(LedgerTest, AfterARebootEverythingIsFree) {
  Ledger ledger = open();
  ASSERT_TRUE(ledger.try_claim(ledger.submit(request(2))));
  raw().execute("UPDATE tasks SET boot = 'another'");
  EXPECT_TRUE(ledger.try_claim(ledger.submit(request(2))));
  EXPECT_EQ(ledger.find(1)->reason, "the machine was started anew");
}

// Where processes cannot be seen, the lease says who lives.
TEST_F(LedgerTest, ALeaseKeepsATaskWhoseProcessCannotBeSeen) {
  Ledger ledger = open();
  const TaskId elsewhere = ledger.submit(request(2));
  ASSERT_TRUE(ledger.try_claim(elsewhere));
  raw().execute("UPDATE tasks SET namespace = 'pid:[1]'");
  clock_.ahead = 20s;
  EXPECT_FALSE(ledger.orders(elsewhere).lost);  // renews
  clock_.ahead = 45s;
  EXPECT_EQ(state(ledger, elsewhere), TaskState::kStarting);
  clock_.ahead = 60s;
  EXPECT_EQ(state(ledger, elsewhere), TaskState::kStopping);
  clock_.ahead = 200s;
  EXPECT_EQ(state(ledger, elsewhere), TaskState::kFailed);
  EXPECT_TRUE(ledger.orders(elsewhere).lost) << "its owner must know";
  ledger.end(elsewhere, TaskState::kCompleted, "", 0);
  EXPECT_EQ(state(ledger, elsewhere), TaskState::kFailed) << "what has ended does not change";
}

TEST_F(LedgerTest, WithoutAnOwnerAKillEndsWhatItLeft) {
  Child rank([] {});
  ::kill(rank.pid(), SIGSTOP);  // it will not end by itself
  {
    Child launcher([&] {
      Ledger ledger = open();
      const TaskId id = ledger.submit(request(2));
      if (!ledger.try_claim(id)) throw Error("no claim");
      ledger.add_process(id, "rank 0", rank.pid());
    });
  }
  Ledger ledger = open();
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  EXPECT_EQ(ledger.request_kill(1), KillResult::kEnded);
  EXPECT_EQ(state(ledger, 1), TaskState::kFailed);
  int status = 0;
  EXPECT_EQ(::waitpid(rank.pid(), &status, WNOHANG), rank.pid());
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
}  // namespace dtrain::scheduler
