// The tasks of this user, by number and by run.
#include "dtrain/launcher/user_ledger.h"

#include <optional>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/environment.h"

namespace dtrain::launcher {
namespace {

constexpr const char* kTasksThereAre = "dtrain task list shows those there are";

scheduler::Task task_of_number(scheduler::Ledger& ledger, const std::string& number) {
  const auto id = to_number<scheduler::TaskId>(number);
  if (!id) {
    throw ConfigError("'" + number + "' is not the number of a task",
                      "give its number (127 or task:127), or a run that it is (run:3, run:NAME)");
  }
  auto found = ledger.find(*id);
  if (!found) throw ConfigError("there is no task " + number, kTasksThereAre);
  return *std::move(found);
}

scheduler::Task task_of_run(scheduler::Ledger& ledger, const rank::RunFolder& folder) {
  std::optional<scheduler::Task> found;
  ledger.visit(scheduler::Which::kAll, [&](scheduler::Task&& task) {
    if (task.run_dir == folder.path && (!found || !has_ended(task.state) || has_ended(found->state))) {
      found = std::move(task);
    }
  });
  if (!found) throw ConfigError("no task in this ledger belongs to the run " + folder.path.string(), kTasksThereAre);
  return *std::move(found);
}

}  // namespace

scheduler::Ledger open_user_ledger(const Clock& clock) {
  return scheduler::Ledger::open(rank::state_folder(rank::process_variables()), clock);
}

scheduler::Task find_task(scheduler::Ledger& ledger, const std::string& text) {
  if (text.starts_with("run:")) return task_of_run(ledger, rank::find_run(text));
  return task_of_number(ledger, text.starts_with("task:") ? text.substr(5) : text);
}

rank::RunFolder run_of_task(const std::string& number) {
  const SystemClock clock;
  scheduler::Ledger ledger = open_user_ledger(clock);
  rank::RunFolder folder{task_of_number(ledger, number).run_dir};
  std::error_code code;
  if (!std::filesystem::is_directory(folder.path, code)) {
    throw ConfigError("the run of task " + number + ", " + folder.path.string() + ", is not there any more");
  }
  return folder;
}

}  // namespace dtrain::launcher
