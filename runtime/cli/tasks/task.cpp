#include "commands.h"

#include <cstdio>
#include <memory>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/launcher/user_ledger.h"
#include "tasks/task_facts.h"

namespace dtrain::cli {
namespace {

constexpr auto kPollPeriod = std::chrono::milliseconds(200);

std::string kill(scheduler::Ledger& ledger, scheduler::TaskId id) {
  const std::string name = "task " + std::to_string(id);
  switch (ledger.request_kill(id)) {
    case scheduler::KillResult::kAsked:
      break;
    case scheduler::KillResult::kEnded:
      return name + ": its launcher is gone; the processes that it left were killed";
    case scheduler::KillResult::kHadEnded:
      return name + " has already ended: " + state_text(*ledger.find(id));
  }
  if (ledger.orders(id).kills > 1) return name + ": its ranks are being killed";
  return name + " was asked to stop after its current step; a second `dtrain task kill` kills its ranks";
}

void add_task_kill(CLI::App& task) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      task.add_subcommand("kill", "Stop tasks after their current step, as Ctrl-C does; a second time, at once");
  command->add_option("ID", *ids, kTaskHelp)->required();
  command->callback([ids] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    for (const std::string& id : *ids) std::printf("%s\n", kill(ledger, run::find_task(ledger, id).id).c_str());
  });
}

std::string set_paused(scheduler::Ledger& ledger, scheduler::TaskId id, bool paused) {
  const std::string name = "task " + std::to_string(id);
  const scheduler::Task task = *ledger.find(id);
  if (has_ended(task.state)) return name + " has already ended: " + state_text(task);
  if (!ledger.set_paused(id, paused)) return name + (paused ? " is paused already" : " is not paused");
  if (!paused) return name + " waits in the queue again, in its old place";
  const bool waits = task.state == scheduler::TaskState::kQueued || task.state == scheduler::TaskState::kPaused;
  const std::string then = "; dtrain task activate " + std::to_string(id) + " lets it go on";
  return waits ? name + " is paused" + then : name + " saves after its current step and gives up its slots" + then;
}

void add(CLI::App& task, const std::string& name, const std::string& description, bool paused) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command = task.add_subcommand(name, description);
  command->add_option("ID", *ids, kTaskHelp)->required();
  command->callback([ids, paused] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    for (const std::string& id : *ids) {
      std::printf("%s\n", set_paused(ledger, run::find_task(ledger, id).id, paused).c_str());
    }
  });
}

void add_task_pause(CLI::App& task) {
  add(task, "pause", "Make tasks save a checkpoint, give up their slots, and wait until they are activated", true);
}

void add_task_activate(CLI::App& task) {
  add(task, "activate", "Queue paused tasks again; they go on from their checkpoints", false);
}

void add_task_wait(CLI::App& task, ExitCode* exit_code) {
  auto name = std::make_shared<std::string>();
  CLI::App* command = task.add_subcommand("wait", "Wait until a task has ended, and exit with its exit code");
  command->add_option("ID", *name, kTaskHelp)->required();
  command->callback([name, exit_code] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    scheduler::Task task = run::find_task(ledger, *name);
    while (!has_ended(task.state)) {
      std::this_thread::sleep_for(kPollPeriod);
      task = ledger.find(task.id).value();
    }
    std::printf("task %lld %s\n", static_cast<long long>(task.id), state_text(task).c_str());
    *exit_code = task.exit_code ? static_cast<ExitCode>(*task.exit_code) : ExitCode::kRunFailed;
  });
}

}  // namespace

void add_task(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command =
      app.add_subcommand("task", "List, stop, pause and wait for launches of this user on this machine");
  command->require_subcommand(1);
  add_task_list(*command);
  add_task_show(*command);
  add_task_kill(*command);
  add_task_pause(*command);
  add_task_activate(*command);
  add_task_wait(*command, exit_code);
}

}  // namespace dtrain::cli
