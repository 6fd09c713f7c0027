#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <tuple>

#include "commands.h"
#include "dtrain/launcher/user_ledger.h"
#include "table.h"
#include "tasks/task_facts.h"

namespace dtrain::cli {
namespace {

using scheduler::Task;
using scheduler::TaskState;

std::optional<std::string> utc(const std::optional<Nanoseconds>& wall) {
  return wall ? std::optional(format_utc(*wall)) : std::nullopt;
}

// Lists ended tasks first, by id, then running ones, then the queue in its order: people look at the end first.
class TaskTable {
 public:
  explicit TaskTable(ListFormat format) : table_(columns(format), format), for_people_(format == ListFormat::kText) {}

  void add(Task&& task) {  // by id
    if (has_ended(task.state)) {
      write(task);
    } else {
      later_.push_back(std::move(task));
    }
  }
  std::string finish() {
    const auto place = [](const Task& task) {
      const bool waits = task.state == TaskState::kQueued || task.state == TaskState::kPaused;
      return waits ? std::tuple(1, task.priority, task.id) : std::tuple(0, 0, task.id);
    };
    std::sort(later_.begin(), later_.end(), [&](const Task& a, const Task& b) { return place(a) < place(b); });
    for (const Task& task : later_) write(task);
    return table_.finish();
  }

 private:
  static std::vector<Table::Column> columns(ListFormat format) {
    std::vector<Table::Column> columns{{"id"},
                                       {"name"},
                                       {"state"},
                                       {"slots"},
                                       {.name = "cores_per_slot", .title = "x cores"},
                                       {"agents"},
                                       {"priority"},
                                       {.name = "behind", .title = "waits behind"},
                                       {"reason"}};
    if (format == ListFormat::kText) return columns;
    for (const char* name : {"submitted", "started", "ended", "exit_code", "run_dir", "launcher_pid"}) {
      columns.push_back({name});
    }
    return columns;
  }

  void write(const Task& task) {
    agents_.clear();
    for (const scheduler::ClaimedShare& share : task.claim) agents_.emplace_back(share.agent);
    const Cell agents = agents_.empty() ? Cell() : Cell(agents_);
    const Cell behind = task.waiting ? Cell(task.waiting->behind) : Cell();
    const std::string& why = reason_of(task);
    const Cell reason = why.empty() ? Cell() : Cell(why);
    const Json cores = cores_per_slot(task);
    const Cell each = cores.is_null() ? Cell() : Cell(cores.get<int>());
    if (for_people_) {
      table_.add({task.id, task.name, to_string(task.state), task.slots, each, agents, task.priority, behind, reason});
    } else {
      table_.add({task.id, task.name, to_string(task.state), task.slots, each, agents, task.priority, behind, reason,
                  format_utc(task.submitted), utc(task.started), utc(task.ended), task.exit_code, task.run_dir,
                  task.launcher_pid});
    }
  }

  Table table_;
  bool for_people_;
  std::vector<Task> later_;
  std::vector<std::string_view> agents_;  // of the task at hand
};

}  // namespace

void add_task_list(CLI::App& task) {
  CLI::App* command = task.add_subcommand("list", "List all tasks, and what the queued ones wait for");
  auto active = std::make_shared<bool>(false);
  command->add_flag("--active", *active, "Only tasks that have not ended");
  auto format = add_list_format(*command);
  command->footer(
      "A task is one `dtrain launch`. Tasks with a lower priority number go first, then older ones. A later task\n"
      "starts first only on slots that no task before it could use. Where the cluster file says scheduler.preemption:\n"
      "true, a task with a lower priority number makes others save, give up their slots, and go on later.");
  command->callback([active, format] {
    const SystemClock clock;
    TaskTable table(*format);
    run::open_user_ledger(clock).visit(*active ? scheduler::Which::kNotEnded : scheduler::Which::kAll,
                                       [&](Task&& task) { table.add(std::move(task)); });
    std::fputs(table.finish().c_str(), stdout);
  });
}

}  // namespace dtrain::cli
