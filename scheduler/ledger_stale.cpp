// Ends tasks whose owner is gone, and asks owners to stop.
#include <thread>

#include "dtrain/base/error.h"
#include "ledger_impl.h"

namespace dtrain::scheduler {
namespace {

using Kind = Transaction::Kind;
using std::chrono::milliseconds;

// For this time after a launcher was killed, one of its ranks may still be between fork and exec and so have no mark.
constexpr auto kForkToExec = std::chrono::seconds(2);
constexpr auto kPatienceWithKilled = std::chrono::seconds(10);

std::string gone(const Owned& task) {
  return "its launcher (pid " + std::to_string(task.owner.pid) + ") is gone";
}

}  // namespace

std::vector<Owned> Ledger::Impl::owned_tasks(const std::string& condition) {
  std::vector<Owned> tasks;
  Statement row = database.prepare(
      "SELECT id, state, boot, namespace, pid, ticks, lease, entered FROM tasks WHERE state < 4 AND " + condition);
  while (row.step()) {
    tasks.push_back({.id = row.integer(0),
                     .state = static_cast<TaskState>(row.integer(1)),
                     .owner = {{row.text(2), row.text(3)},
                               static_cast<pid_t>(row.integer(4)),
                               static_cast<std::uint64_t>(row.integer(5))},
                     .lease = Nanoseconds(row.integer(6)),
                     .entered = Nanoseconds(row.integer(7))});
  }
  return tasks;
}

bool Ledger::Impl::is_owned(const Owned& task) const {
  const Life life = life_of(task.owner, here);
  return life == Life::kAlive || (life == Life::kUnknown && task.lease > clock.monotonic());
}

bool Ledger::Impl::leaves_something(const Owned& task) {
  if (task.owner.place.boot != here.boot) return false;
  // Ranks in another PID namespace get the time of another lease to notice that their launcher is gone, and to end.
  if (task.owner.place.namespace_ != here.namespace_) return clock.monotonic() < task.lease + kLease;
  for (const ProcessKey& process : processes_of(task.id)) {
    if (life_of(process, here) != Life::kGone) return true;
  }
  return has_ranks(task.owner);
}

// A queued task ends at once. A running one is first marked as stopping, so that its slots stay held until kForkToExec
// has passed and none of its processes is left. Each change is made only if the state is still the one that was read:
// any process may run this at the same time.
bool Ledger::Impl::advance_ended(const Owned& task) {
  if (is_owned(task)) return false;
  const auto enter = [&](auto&& change) {
    Transaction transaction(database, Kind::kWrite);
    if (state_of(task.id) != task.state) return false;  // another process was faster
    change();
    transaction.commit();
    return true;
  };
  if (task.state == TaskState::kQueued) {
    return enter([&] {
      finish(task.id, TaskState::kInterrupted, gone(task) + ", and nothing had been started",
             static_cast<int>(ExitCode::kInterrupted));
    });
  }
  const bool booted = task.owner.place.boot != here.boot;
  if (task.state != TaskState::kStopping && !booted) {
    return enter([&] { enter_state(task.id, TaskState::kStopping, gone(task)); });
  }
  if (!booted && clock.monotonic() - task.entered < kForkToExec) return false;
  if (leaves_something(task)) return false;
  return enter([&] {
    finish(task.id, TaskState::kFailed, booted ? "the machine was started anew" : gone(task) + " without a word",
           static_cast<int>(ExitCode::kRunFailed));
  });
}

bool Ledger::free_stale() {
  bool changed = false;
  for (const Owned& task : impl_->owned_tasks("1")) changed |= impl_->advance_ended(task);
  return changed;
}

KillResult Ledger::request_kill(TaskId id) {
  const std::string self = "id = " + std::to_string(id);
  {
    Transaction transaction(impl_->database, Kind::kWrite);
    const auto state = impl_->state_of(id);
    if (!state) {
      throw ConfigError("there is no task " + std::to_string(id), "dtrain task list shows those there are");
    }
    if (has_ended(*state)) return KillResult::kHadEnded;
    impl_->database.prepare("UPDATE tasks SET kills = kills + 1 WHERE id = ?1").bind(id).run();
    impl_->changed();
    transaction.commit();
  }
  std::vector<Owned> tasks = impl_->owned_tasks(self);
  if (tasks.empty() || impl_->is_owned(tasks.front())) return KillResult::kAsked;
  // The owner is gone. Processes that it started end by themselves, unless they are stopped or hang.
  const Nanoseconds deadline = impl_->clock.monotonic() + kPatienceWithKilled;
  while (!tasks.empty() && impl_->clock.monotonic() < deadline) {
    for (const ProcessKey& process : impl_->processes_of(id)) kill_process(process, impl_->here);
    impl_->advance_ended(tasks.front());
    tasks = impl_->owned_tasks(self);
    if (!tasks.empty()) std::this_thread::sleep_for(milliseconds(50));
  }
  return tasks.empty() ? KillResult::kEnded : KillResult::kAsked;
}

}  // namespace dtrain::scheduler
