#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/run/user_ledger.h"
#include "tasks/task_facts.h"

namespace dtrain::cli {
namespace {

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

}  // namespace

void add_task_kill(CLI::App& task, int* exit_code) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      task.add_subcommand("kill", "Stop tasks after their current step, as Ctrl-C does; a second time, at once");
  command->add_option("ID", *ids, kTaskHelp)->required();
  command->callback([ids, exit_code] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    for (const std::string& id : *ids) std::printf("%s\n", kill(ledger, run::find_task(ledger, id).id).c_str());
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
