#include <cstdio>
#include <memory>
#include <thread>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/run/user_ledger.h"
#include "tasks/task_facts.h"

namespace dtrain::cli {
namespace {
constexpr auto kPollPeriod = std::chrono::milliseconds(200);
}

void add_task_wait(CLI::App& task, int* exit_code) {
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
    *exit_code = task.exit_code.value_or(static_cast<int>(ExitCode::kRunFailed));
  });
}

}  // namespace dtrain::cli
