#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/run/user_ledger.h"
#include "tasks/task_facts.h"

namespace dtrain::cli {
namespace {

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

void add(CLI::App& task, const std::string& name, const std::string& description, bool paused, int* exit_code) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command = task.add_subcommand(name, description);
  command->add_option("ID", *ids, kTaskHelp)->required();
  command->callback([ids, paused, exit_code] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    for (const std::string& id : *ids) {
      std::printf("%s\n", set_paused(ledger, run::find_task(ledger, id).id, paused).c_str());
    }
    *exit_code = 0;
  });
}

}  // namespace

void add_task_pause(CLI::App& task, int* exit_code) {
  add(task, "pause", "Make tasks save a checkpoint, give up their slots, and wait until they are activated", true,
      exit_code);
}

void add_task_activate(CLI::App& task, int* exit_code) {
  add(task, "activate", "Queue paused tasks again; they go on from their checkpoints", false, exit_code);
}

}  // namespace dtrain::cli
