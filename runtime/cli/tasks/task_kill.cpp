#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/run/find_task.h"
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
      return name + ": its launcher was gone; what it had left running has been killed";
    case scheduler::KillResult::kHadEnded:
      return name + " had ended: " + state_text(*ledger.find(id));
  }
  return ledger.orders(id).kills > 1 ? name + ": its ranks are being killed"
                                     : name + " was asked to stop after its current step; once more kills its ranks";
}

}  // namespace

void add_task_kill(CLI::App& task, int* exit_code) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command = task.add_subcommand("kill", "Stop tasks, as Ctrl-C does; asked again, at once");
  command->add_option("ID", *ids, kTaskHelp)->required();
  command->callback([ids, exit_code] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    for (const std::string& id : *ids) std::printf("%s\n", kill(ledger, run::find_task(ledger, id).id).c_str());
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
