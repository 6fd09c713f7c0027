// What becomes of the tasks of processes that died.
#include <fstream>

#include "dtrain/scheduler/rank_mark.h"
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
  clock_.elapsed = 10min;  // however long it takes
  EXPECT_FALSE(ledger.try_claim(waiting)) << "the rank still runs on its slot";
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  rank.kill();
  clock_.elapsed = 11min;
  EXPECT_TRUE(ledger.try_claim(waiting));
  const auto task = ledger.find(1);
  EXPECT_EQ(task->state, TaskState::kFailed);
  EXPECT_EQ(task->exit_code, 1);
  EXPECT_EQ(task->reason, "its launcher (pid " + std::to_string(launcher_pid) + ") is gone without a word");
}

// A launcher with a task that has its slots, killed before it has written down what it started.
class UnrecordedRank : public LedgerTest {
 protected:
  UnrecordedRank()
      : launcher_([this] {
          Ledger ledger = open();
          if (!ledger.try_claim(ledger.submit(request(2)))) throw Error("no claim");
        }) {
    mark_ = rank_mark(launcher_.pid());
  }
  ~UnrecordedRank() override { end(); }

  // `prepare` is what becomes of it before its program starts.
  void start(const std::string& mark, const std::function<void()>& prepare) {
    const std::string variable = std::string(kRankMark) + "=" + mark;
    process_ = ::fork();
    if (process_ == 0) {
      prepare();
      const char* const environment[] = {"A=1", variable.c_str(), nullptr};
      ::execle("/bin/sleep", "sleep", "1000", nullptr, environment);
      ::_exit(1);
    }
    EXPECT_TRUE(eventually([&] {  // its environment is seen once it has got to exec
      std::ifstream file("/proc/" + std::to_string(process_) + "/comm");
      std::string name;
      return static_cast<bool>(std::getline(file, name)) && name == "sleep";
    }));
  }
  void end() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  TaskState state_after_the_launchers_death() {
    launcher_.kill();
    Ledger ledger = open();
    EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
    clock_.elapsed = 10min;
    return state(ledger, 1);
  }

  Child launcher_;
  std::string mark_;
  pid_t process_ = -1;
};

TEST_F(UnrecordedRank, KeepsItsSlots) {
  start(mark_, [] { ::setpgid(0, 0); });
  EXPECT_EQ(state_after_the_launchers_death(), TaskState::kStopping);
  end();
  Ledger ledger = open();
  EXPECT_EQ(state(ledger, 1), TaskState::kFailed);
}

TEST_F(UnrecordedRank, IsNotADaemonThatATrialHasLeft) {
  start(mark_, [] { ::setsid(); });
  EXPECT_EQ(state_after_the_launchers_death(), TaskState::kFailed);
}

TEST_F(UnrecordedRank, IsNotWhatRunsInARanksGroup) {
  Child rank([] { ::setpgid(0, 0); });
  start(mark_, [&] { ::setpgid(0, rank.pid()); });
  rank.kill();
  EXPECT_EQ(state_after_the_launchers_death(), TaskState::kFailed);
}

TEST_F(UnrecordedRank, IsNotOneOfALauncherThatHadTheSameNumber) {
  const std::string other = std::to_string(launcher_.pid()) + ".1." + std::to_string(::getsid(0));
  start(other, [] { ::setpgid(0, 0); });
  EXPECT_EQ(state_after_the_launchers_death(), TaskState::kFailed);
}

TEST_F(LedgerTest, AWallClockThatIsSetBackKeepsNoSlots) {
  {
    Child launcher([&] {
      Ledger ledger = open();
      if (!ledger.try_claim(ledger.submit(request(2)))) throw Error("no claim");
    });
  }
  Ledger ledger = open();
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  clock_.wall_set = -1h;
  clock_.elapsed = 5s;
  EXPECT_EQ(state(ledger, 1), TaskState::kFailed);
  EXPECT_TRUE(ledger.try_claim(ledger.submit(request(2))));
}

// So long one of its ranks may be on its way from fork to exec.
TEST_F(LedgerTest, AWallClockThatIsSetForwardFreesNoSlotsTooEarly) {
  {
    Child launcher([&] {
      Ledger ledger = open();
      if (!ledger.try_claim(ledger.submit(request(2)))) throw Error("no claim");
    });
  }
  Ledger ledger = open();
  const Nanoseconds began = clock_.monotonic();
  EXPECT_EQ(state(ledger, 1), TaskState::kStopping);
  clock_.wall_set = 1h;
  const TaskState after = state(ledger, 1);
  const bool in_time = clock_.monotonic() - began < 2s;
  EXPECT_TRUE(!in_time || after == TaskState::kStopping) << to_string(after);
}

TEST_F(LedgerTest, ALedgerOfTheVersionBeforeIsTakenOn) {
  open();
  raw().execute("ALTER TABLE tasks DROP COLUMN entered");
  Ledger ledger = open();
  EXPECT_TRUE(ledger.try_claim(ledger.submit(request(2))));
  EXPECT_EQ(raw().value("SELECT count(*) FROM tasks WHERE entered > 0"), 1);
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
  EXPECT_EQ(state(ledger, 2), TaskState::kInterrupted);
  EXPECT_EQ(ledger.find(2)->exit_code, 130);
}

TEST_F(LedgerTest, AQueuedTaskWhoseLauncherIsStoppedHoldsNobodyUp) {
  Ledger ledger = open();
  ASSERT_TRUE(ledger.try_claim(ledger.submit(request(1))));
  ledger.submit(request(2, 1));  // no call asks for it again
  clock_.elapsed = 1min;         // longer than a lease
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

// Where processes cannot be seen, the lease decides which ones live.
TEST_F(LedgerTest, ALeaseKeepsATaskWhoseProcessCannotBeSeen) {
  Ledger ledger = open();
  const TaskId elsewhere = ledger.submit(request(2));
  ASSERT_TRUE(ledger.try_claim(elsewhere));
  raw().execute("UPDATE tasks SET namespace = 'pid:[1]'");
  clock_.elapsed = 20s;
  EXPECT_FALSE(ledger.orders(elsewhere).lost);  // renews
  clock_.elapsed = 45s;
  EXPECT_EQ(state(ledger, elsewhere), TaskState::kStarting);
  clock_.elapsed = 60s;
  EXPECT_EQ(state(ledger, elsewhere), TaskState::kStopping);
  clock_.elapsed = 200s;
  EXPECT_EQ(state(ledger, elsewhere), TaskState::kFailed);
  EXPECT_TRUE(ledger.orders(elsewhere).lost) << "its owner must know";
  ledger.end(elsewhere, TaskState::kDone, "", 0);
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
