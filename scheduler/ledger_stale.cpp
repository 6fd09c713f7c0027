// Ends tasks whose owner is gone, and asks owners to stop.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <system_error>
#include <thread>

#include <sys/syscall.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/host/processes.h"
#include "dtrain/scheduler/rank_mark.h"
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
    if (!state) throw ConfigError("there is no task " + std::to_string(id), "dtrain task list shows those there are");
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

namespace fs = std::filesystem;

Place this_place() {
  std::error_code code;
  return {host::host_identity().boot_id, fs::read_symlink("/proc/self/ns/pid", code).string()};
}

ProcessKey key_of(pid_t pid, const Place& here) {
  return {here, pid, host::start_ticks(pid)};
}

Life life_of(const ProcessKey& process, const Place& here) {
  if (process.place.boot != here.boot) return Life::kGone;
  if (process.place.namespace_ != here.namespace_) return Life::kUnknown;
  // A process that had ended before its start time was read has ticks 0.
  return process.ticks != 0 && host::start_ticks(process.pid) == process.ticks ? Life::kAlive : Life::kGone;
}

bool has_ranks(const ProcessKey& launcher) {
  const std::string wanted = std::string(1, '\0') + kRankMark + "=" + std::to_string(launcher.pid) + "." +
                             std::to_string(launcher.ticks) + ".";
  std::error_code code;
  for (const auto& entry : fs::directory_iterator("/proc", code)) {
    const std::string name = entry.path().filename();
    const pid_t pid = to_number<pid_t>(name).value_or(0);
    if (pid <= 0 || pid == ::getpid() || ::getpgid(pid) != pid) continue;
    const auto variables = host::read_proc_file(entry.path() / "environ");
    if (!variables) continue;
    const std::string environment = std::string(1, '\0') + *variables;
    const auto at = environment.find(wanted);
    if (at == std::string::npos) continue;
    auto session = std::string_view(environment).substr(at + wanted.size());
    if (::getsid(pid) == take_number<pid_t>(session).value_or(-1) && host::start_ticks(pid) != 0) return true;
  }
  return false;
}

std::string rank_mark(pid_t launcher) {
  return std::to_string(launcher) + "." + std::to_string(host::start_ticks(launcher)) + "." +
         std::to_string(::getsid(launcher));
}

void kill_process(const ProcessKey& process, const Place& here) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!handle || life_of(process, here) != Life::kAlive)
    return;  // checked after the handle was made, so the handle is of this process
  ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
}

}  // namespace dtrain::scheduler
