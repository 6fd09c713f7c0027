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
  const auto place = [](const Task& task) {
    if (has_ended(task.state)) return std::tuple(0, 0, task.id);
    return task.state == TaskState::kQueued ? std::tuple(2, task.priority, task.id) : std::tuple(1, 0, task.id);
  };
  std::sort(tasks.begin(), tasks.end(), [&](const Task& a, const Task& b) { return place(a) < place(b); });
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
    std::vector<Json> row{task.id,         task.name,     to_string(task.state), task.slots,
                          agents_of(task), task.priority, behind_of(task),       reason_of(task)};
    if (!for_people) {
      row.insert(row.end(),
                 {time_of(task.submitted), time_of(task.started), time_of(task.ended),
                  task.exit_code ? Json(*task.exit_code) : Json(), task.run_dir.string(), task.launcher_pid});
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
