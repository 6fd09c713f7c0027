// What tests of the ledger share: a folder, a clock, processes of their own.
#pragma once

#include <csignal>
#include <functional>
#include <memory>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../harness/eventually.h"
#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/scheduler/ledger.h"
#include "sqlite.h"

namespace dtrain::scheduler {

using namespace std::chrono_literals;

class SetClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return SystemClock().monotonic() + elapsed; }
  Nanoseconds wall() const override { return SystemClock().wall() + elapsed + wall_set; }
  Nanoseconds elapsed{0};   // so much time has passed, on both
  Nanoseconds wall_set{0};  // so far somebody has set the wall clock, forward or back; the other cannot be set
};

// A process of its own, which runs `work` and then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<void()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) throw SystemError("pipe", errno);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      try {
        work();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        ::_exit(1);
      }
      [[maybe_unused]] const auto written = ::write(ends[1], "!", 1);
      while (true) ::pause();
    }
    ::close(ends[1]);
    char ready = 0;
    EXPECT_EQ(::read(ends[0], &ready, 1), 1) << "the child failed";
    ::close(ends[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

class LedgerTest : public testing::Test {
 protected:
  Ledger open() { return Ledger::open(folder_.path() / "state", clock_); }
  Database raw() { return {folder_.path() / "state" / "ledger.db", 1000}; }

  static TaskRequest request(int slots, int priority = 42, const std::string& name = "test") {
    TaskRequest result{.name = name, .priority = priority, .run_dir = "/runs/0001-test"};
    result.slots.slots = slots;
    result.agents = {{.id = "node", .slots = 2, .free = 2}};
    return result;
  }
  static TaskState state(Ledger& ledger, TaskId id) { return ledger.find(id)->state; }

  TemporaryFolder folder_;
  SetClock clock_;
};

}  // namespace dtrain::scheduler
