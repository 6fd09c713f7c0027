#include <cstdio>
#include <memory>
#include <thread>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/run/user_ledger.h"
#include "task_facts.h"

namespace dtrain::cli {
namespace {
constexpr auto kPollPeriod = std::chrono::milliseconds(200);
}

void add_task_wait(CLI::App& task, int* exit_code) {
  auto id = std::make_shared<scheduler::TaskId>(0);
  CLI::App* command = task.add_subcommand("wait", "Wait until a task has ended, and end with its exit code");
  command->add_option("ID", *id, "The task's number")->required();
  command->callback([id, exit_code] {
    const SystemClock clock;
    scheduler::Ledger ledger = run::open_user_ledger(clock);
    auto found = ledger.find(*id);
    if (!found) throw no_such_task(*id);
    while (!has_ended(found->state)) {
      std::this_thread::sleep_for(kPollPeriod);
      found = ledger.find(*id);
    }
    std::printf("task %lld %s\n", static_cast<long long>(*id), state_text(*found).c_str());
    *exit_code = found->exit_code.value_or(static_cast<int>(ExitCode::kRunFailed));
  });
}

}  // namespace dtrain::cli
