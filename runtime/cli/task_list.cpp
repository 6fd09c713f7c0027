#include <algorithm>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtrain/run/user_ledger.h"
#include "table.h"
#include "task_facts.h"

namespace dtrain::cli {
namespace {

using scheduler::Task;
using scheduler::TaskState;

// Ended ones first, by id, then those that run, then the queue in its order: what is newest stands where one looks.
void put_in_order(std::vector<Task>& tasks) {
  const auto running =
      std::stable_partition(tasks.begin(), tasks.end(), [](const Task& task) { return has_ended(task.state); });
  const auto place = [](const Task& task) {
    return task.state == TaskState::kQueued ? std::tuple(1, task.priority, task.id) : std::tuple(0, 0, task.id);
  };
  std::sort(running, tasks.end(), [&](const Task& a, const Task& b) { return place(a) < place(b); });
}

Table make_table(const std::vector<Task>& tasks, bool for_people) {
  std::vector<Table::Column> columns{
      {"id"},    {"name"}, {"state"}, {"slots"}, {"agents"}, {"priority"}, {.name = "behind", .title = "waits behind"},
      {"reason"}};
  if (!for_people) {
    for (const char* name : {"submitted", "started", "ended", "exit_code", "run_dir", "launcher_pid"}) {
      columns.push_back({name});
    }
  }
  Table table(columns);
  for (const Task& task : tasks) {
    std::vector<Json> row;
    row.reserve(columns.size());
    row.emplace_back(task.id);
    row.emplace_back(task.name);
    row.emplace_back(to_string(task.state));
    row.emplace_back(task.slots);
    row.push_back(agents_of(task));
    row.emplace_back(task.priority);
    row.push_back(behind_of(task));
    row.push_back(reason_of(task));
    if (!for_people) {
      row.push_back(time_of(task.submitted));
      row.push_back(time_of(task.started));
      row.push_back(time_of(task.ended));
      row.push_back(task.exit_code ? Json(*task.exit_code) : Json());
      row.emplace_back(task.run_dir);
      row.emplace_back(task.launcher_pid);
    }
    table.add(std::move(row));
  }
  return table;
}

}  // namespace

void add_task_list(CLI::App& task, int* exit_code) {
  CLI::App* command = task.add_subcommand("list", "The tasks there are and were, and what the queued ones wait for");
  auto active = std::make_shared<bool>(false);
  command->add_flag("--active", *active, "Only those that have not ended");
  auto format = add_list_format(*command);
  command->footer(
      "A task is one `dtrain launch`. Lower priorities go first, then older tasks; a later one goes ahead only on "
      "slots\n"
      "that nobody before it could use.");
  command->callback([active, format, exit_code] {
    const SystemClock clock;
    auto tasks = run::open_user_ledger(clock).list(*active ? scheduler::Which::kNotEnded : scheduler::Which::kAll);
    put_in_order(tasks);
    std::fputs(make_table(tasks, *format == ListFormat::kText).render(*format).c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
