#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/user_ledger.h"
#include "tasks/task_facts.h"

namespace dtrain::cli {
namespace {

using scheduler::StateChange;
using scheduler::Task;

struct TaskShowArguments {
  std::string name;
  bool json = false;
};

Json to_json(const Task& task, const std::vector<StateChange>& history) {
  const analysis::RunHistory run = analysis::read_history(task.run_dir);
  Json attempts = Json::array();
  for (const analysis::AttemptAccount& attempt : run.attempts) attempts.push_back(analysis::to_json(attempt));
  Json claim = Json::array();
  for (const scheduler::ClaimedShare& share : task.claim) {
    claim.push_back({{"agent", share.agent}, {"slots", share.slots}});
    if (!share.gpus.empty()) claim.back()["gpus"] = share.gpus;
    if (!share.cores.empty()) claim.back()["cores"] = share.cores;
  }
  Json changes = Json::array();
  for (const StateChange& change : history) {
    changes.push_back({{"time", time_of(change.time)}, {"state", to_string(change.state)}, {"reason", change.reason}});
  }
  return {{"id", task.id},
          {"name", task.name},
          {"state", to_string(task.state)},
          {"reason", reason_of(task).empty() ? Json() : Json(reason_of(task))},
          {"behind", task.waiting ? Json(task.waiting->behind) : Json()},
          {"slots", task.slots},
          {"cores_per_slot", cores_per_slot(task)},
          {"claim", claim},
          {"priority", task.priority},
          {"submitted", time_of(task.submitted)},
          {"started", time_of(task.started)},
          {"ended", time_of(task.ended)},
          {"exit_code", task.exit_code ? Json(*task.exit_code) : Json()},
          {"run_dir", task.run_dir},
          {"attempts", attempts},
          {"checkpoint", run.checkpoints.empty() ? Json() : analysis::to_json(run.checkpoints.back())},
          {"launcher_pid", task.launcher_pid},
          {"history", changes}};
}

std::string row(std::string name, const std::string& value) {
  name.resize(12, ' ');
  return name + value + "\n";
}

std::string to_text(const Task& task, const std::vector<StateChange>& history) {
  std::string text = row("task", std::to_string(task.id) + " (" + task.name + ")");
  text += row("state", state_text(task));
  if (task.waiting && !task.waiting->behind.empty()) {
    std::vector<std::string> ids;
    for (const scheduler::TaskId id : task.waiting->behind) ids.push_back(std::to_string(id));
    text += row("behind", join(ids, ", "));
  }
  text += row("priority", std::to_string(task.priority));
  text += row("slots", slots_text(task));
  for (const scheduler::ClaimedShare& share : task.claim) {
    std::vector<std::string> slots;
    for (const int slot : share.slots) slots.push_back(std::to_string(slot));
    if (!share.cores.empty()) {
      std::vector<std::string> cores;
      for (const std::vector<int>& of_slot : share.cores) cores.push_back(ranges_text(of_slot));
      text += row("agent", share.agent + ", cores " + join(cores, " | "));
      continue;
    }
    text += row("agent", share.agent + ", slots " + join(slots, ", ") +
                             (share.gpus.empty() ? "" : " (" + join(share.gpus, ", ") + ")"));
  }
  text += row("run", task.run_dir);
  const analysis::RunHistory run = analysis::read_history(task.run_dir);
  if (run.attempts.size() > 1) text += row("attempts", std::to_string(run.attempts.size()));
  if (!run.checkpoints.empty()) {
    const analysis::CheckpointAccount& last = run.checkpoints.back();
    const auto time = Nanoseconds(static_cast<std::int64_t>(last.time_s * 1e9));
    text += row("checkpoint", "of batch " + std::to_string(last.step) + ", " + format_utc(time));
  }
  text += row("launcher", "pid " + std::to_string(task.launcher_pid));
  for (const StateChange& change : history) {
    text += row("", time_of(change.time).get<std::string>() + "  " + to_string(change.state) +
                        (change.reason.empty() ? "" : ": " + change.reason));
  }
  return text;
}

}  // namespace

void add_task_show(CLI::App& task) {
  auto arguments = std::make_shared<TaskShowArguments>();
  CLI::App* command =
      task.add_subcommand("show", "Show one task with its slots, its last checkpoint and every change of its state");
  command->add_option("ID", arguments->name, kTaskHelp)->required();
  command->add_flag("--json", arguments->json, "As JSON");
  command->callback([arguments] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    const Task found = run::find_task(ledger, arguments->name);
    const auto history = ledger.history(found.id);
    const std::string text = arguments->json ? to_line(to_json(found, history)) + "\n" : to_text(found, history);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace dtrain::cli
