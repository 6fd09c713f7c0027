#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "commands.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/user_ledger.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/scheduler/ledger.h"
#include "table.h"

namespace dtrain::cli {
namespace {

// The help of the argument that launcher::find_task() reads.
inline constexpr const char* kTaskHelp = "The task: its number (127 or task:127), or its run under ./runs (run:3)";

std::optional<std::string> utc(const std::optional<Nanoseconds>& wall) {
  return wall ? std::optional(format_utc(*wall)) : std::nullopt;
}

// Returns the reason for the task's state: why a queued task waits, why a task has ended. Empty: no reason.
const std::string& reason_of(const scheduler::Task& task) {
  return task.waiting ? task.waiting->reason : task.reason;
}

// Returns the cores of each of the task's slots: those it holds or held, else those it asks for; the least, if slots
// have unlike numbers. Null: the task takes all cores, or its slots are not made of cores.
Json cores_per_slot(const scheduler::Task& task) {
  std::size_t least = 0;
  for (const scheduler::ClaimedShare& share : task.claim) {
    for (const std::vector<int>& cores : share.cores) least = least == 0 ? cores.size() : std::min(least, cores.size());
  }
  if (least > 0) return least;
  return task.cores_per_slot > 0 ? Json(task.cores_per_slot) : Json();
}

// "1..4": the numbers of slots that an elastic task may have. Empty: it is not elastic.
std::string elastic_text(const scheduler::Task& task) {
  return task.most > 0 ? std::to_string(task.least) + ".." + std::to_string(task.most) : std::string();
}

// "2 slots x 16 cores", "3 slots", "2 of 1..4 slots"
std::string slots_text(const scheduler::Task& task) {
  const std::string slots = task.most > 0 ? std::to_string(task.slots) + " of " + elastic_text(task) + " slots"
                                          : count_of(task.slots, "slot");
  const Json cores = cores_per_slot(task);
  return cores.is_null() ? slots : slots + " x " + count_of(cores.get<std::int64_t>(), "core");
}

// "running", "done (exit code 0)", "failed (exit code 1): rank 1 was killed"
std::string state_text(const scheduler::Task& task) {
  std::string text = to_string(task.state);
  if (task.exit_code) text += " (exit code " + std::to_string(*task.exit_code) + ")";
  const std::string& reason = reason_of(task);
  return reason.empty() ? text : text + ": " + reason;
}

using scheduler::Task;
using scheduler::TaskState;

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
                                       {.name = "elastic", .title = "of"},
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
    const std::string elastic = elastic_text(task);
    const Cell of = elastic.empty() ? Cell() : Cell(elastic);
    const Json cores = cores_per_slot(task);
    const Cell each = cores.is_null() ? Cell() : Cell(cores.get<int>());
    if (for_people_) {
      table_.add(
          {task.id, task.name, to_string(task.state), task.slots, of, each, agents, task.priority, behind, reason});
    } else {
      table_.add({task.id, task.name, to_string(task.state), task.slots, of, each, agents, task.priority, behind,
                  reason, format_utc(task.submitted), utc(task.started), utc(task.ended), task.exit_code, task.run_dir,
                  task.launcher_pid});
    }
  }

  Table table_;
  bool for_people_;
  std::vector<Task> later_;
  std::vector<std::string_view> agents_;  // of the task at hand
};

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
    launcher::open_user_ledger(clock).visit(*active ? scheduler::Which::kNotEnded : scheduler::Which::kAll,
                                            [&](Task&& task) { table.add(std::move(task)); });
    std::fputs(table.finish().c_str(), stdout);
  });
}

using scheduler::StateChange;

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
    changes.push_back(
        {{"time", format_utc(change.time)}, {"state", to_string(change.state)}, {"reason", change.reason}});
  }
  return {{"id", task.id},
          {"name", task.name},
          {"state", to_string(task.state)},
          {"reason", reason_of(task).empty() ? Json() : Json(reason_of(task))},
          {"behind", task.waiting ? Json(task.waiting->behind) : Json()},
          {"slots", task.slots},
          {"elastic", task.most > 0 ? Json{{"min", task.least}, {"max", task.most}} : Json()},
          {"resize", task.resize ? Json{{"slots", task.resize->slots}, {"reason", task.resize->why}} : Json()},
          {"resize_refused", task.resize_refused.empty() ? Json() : Json(task.resize_refused)},
          {"cores_per_slot", cores_per_slot(task)},
          {"claim", claim},
          {"priority", task.priority},
          {"submitted", format_utc(task.submitted)},
          {"started", or_null(utc(task.started))},
          {"ended", or_null(utc(task.ended))},
          {"exit_code", or_null(task.exit_code)},
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
  if (task.resize) text += row("resize", "to " + count_of(task.resize->slots, "slot") + ": " + task.resize->why);
  if (!task.resize_refused.empty()) text += row("refused", "another number of slots: " + task.resize_refused);
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
    text += row("", format_utc(change.time) + "  " + to_string(change.state) +
                        (change.reason.empty() ? "" : ": " + change.reason));
  }
  return text;
}

void add_task_show(CLI::App& task) {
  auto arguments = std::make_shared<AnswerArguments>();
  CLI::App* command =
      task.add_subcommand("show", "Show one task with its slots, its last checkpoint and every change of its state");
  command->add_option("ID", arguments->name, kTaskHelp)->required();
  command->add_flag("--json", arguments->json, "As JSON");
  command->callback([arguments] {
    const SystemClock clock;
    scheduler::Ledger ledger = launcher::open_user_ledger(clock);
    const Task found = launcher::find_task(ledger, arguments->name);
    const auto history = ledger.history(found.id);
    print_answer(
        arguments->json, [&] { return to_json(found, history); }, [&] { return to_text(found, history); });
  });
}

constexpr auto kPollPeriod = std::chrono::milliseconds(200);

std::string kill(scheduler::Ledger& ledger, scheduler::TaskId id) {
  const std::string name = "task " + std::to_string(id);
  using scheduler::KillResult;
  const KillResult result = ledger.request_kill(id);
  if (result == KillResult::kEnded) return name + ": its launcher is gone; the processes that it left were killed";
  if (result == KillResult::kHadEnded) return name + " has already ended: " + state_text(*ledger.find(id));
  if (ledger.orders(id).kills > 1) return name + ": its ranks are being killed";
  return name + " was asked to stop after its current step; a second `dtrain task kill` kills its ranks";
}

void add_task_kill(CLI::App& task) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      task.add_subcommand("kill", "Stop tasks after their current step, as Ctrl-C does; a second time, at once");
  command->add_option("ID", *ids, kTaskHelp)->required();
  command->callback([ids] {
    const SystemClock clock;
    scheduler::Ledger ledger = launcher::open_user_ledger(clock);
    for (const std::string& id : *ids) std::printf("%s\n", kill(ledger, launcher::find_task(ledger, id).id).c_str());
  });
}

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

void add_task_pause(CLI::App& task, const std::string& name, const std::string& description, bool paused) {
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command = task.add_subcommand(name, description);
  command->add_option("ID", *ids, kTaskHelp)->required();
  command->callback([ids, paused] {
    const SystemClock clock;
    scheduler::Ledger ledger = launcher::open_user_ledger(clock);
    for (const std::string& id : *ids) {
      std::printf("%s\n", set_paused(ledger, launcher::find_task(ledger, id).id, paused).c_str());
    }
  });
}

constexpr auto kPatienceWithAnswer = std::chrono::seconds(20);

// Waits for the launcher's answer to an order for another number of slots.
std::string answer_to_resize(scheduler::Ledger& ledger, scheduler::TaskId id, int slots, const Clock& clock) {
  const std::string name = "task " + std::to_string(id), number = count_of(slots, "slot");
  const Nanoseconds deadline = clock.monotonic() + kPatienceWithAnswer;
  for (;;) {
    const scheduler::Task task = *ledger.find(id);
    const bool stops = task.state == scheduler::TaskState::kStopping;
    const bool waits = task.state == scheduler::TaskState::kQueued || task.state == scheduler::TaskState::kPaused;
    if (has_ended(task.state)) return name + " has ended: " + state_text(task);
    if (!task.resize_refused.empty()) {
      throw ConfigError(name + " keeps " + count_of(task.slots, "slot") + ": " + task.resize_refused);
    }
    if (stops && ledger.orders(id).kills > 0) return name + " is being stopped, and does not go on";
    if (task.resize && stops) return name + " saves after its current step and goes on with " + number;
    if (!task.resize) return name + (waits ? " waits for " + number : " goes on with " + number);
    if (clock.monotonic() > deadline) {
      return name + " is asked to go on with " + number + "; its launcher (pid " + std::to_string(task.launcher_pid) +
             ") has not answered yet";
    }
    std::this_thread::sleep_for(kPollPeriod);
  }
}

std::string resize(scheduler::Ledger& ledger, scheduler::TaskId id, int slots, const Clock& clock) {
  const std::string name = "task " + std::to_string(id);
  const bool has_asked = ledger.request_slots(id, slots, "dtrain task resize");
  const scheduler::Task task = *ledger.find(id);
  if (task.most > 0 && !has_ended(task.state)) {
    return name + " may have " + elastic_text(task) + " slots from now on, and has " + std::to_string(task.slots);
  }
  if (has_asked) return answer_to_resize(ledger, id, slots, clock);
  if (has_ended(task.state)) {
    return name + " has already ended: " + state_text(task) +
           "\n  dtrain launch --continue RUN --set resources.slots_per_trial=" + std::to_string(slots) +
           " goes on where it has not trained to its end";
  }
  return name + (task.resize ? " is asked already to go on with " : " has ") + count_of(slots, "slot");
}

void add_task_resize(CLI::App& task) {
  auto name = std::make_shared<std::string>();
  auto slots = std::make_shared<int>(0);
  CLI::App* command =
      task.add_subcommand("resize", "Make a task save a checkpoint, and go on with another number of slots from there");
  command->add_option("ID", *name, kTaskHelp)->required();
  command->add_option("--slots", *slots, "The number of slots")->required()->check(CLI::PositiveNumber);
  command->footer(
      "The run keeps its place in the queue, its checkpoints, and the order of its samples. With\n"
      "reproducibility.virtual_ranks it also keeps its bits; docs/elastic.md says what changes without them.");
  command->callback([name, slots] {
    const SystemClock clock;
    scheduler::Ledger ledger = launcher::open_user_ledger(clock);
    std::printf("%s\n", resize(ledger, launcher::find_task(ledger, *name).id, *slots, clock).c_str());
  });
}

// True while the launcher of a task that has ended still writes the report into the run's folder. Its slots are free.
bool writes_report(const scheduler::Task& task) {
  const auto owner = rank::owner_here(task.run_dir);
  return owner && owner->pid == task.launcher_pid;
}

void add_task_wait(CLI::App& task, ExitCode* exit_code) {
  auto name = std::make_shared<std::string>();
  CLI::App* command =
      task.add_subcommand("wait", "Wait until a task has ended and its report is written, and exit with its exit code");
  command->add_option("ID", *name, kTaskHelp)->required();
  command->callback([name, exit_code] {
    const SystemClock clock;
    scheduler::Ledger ledger = launcher::open_user_ledger(clock);
    scheduler::Task task = launcher::find_task(ledger, *name);
    while (!has_ended(task.state)) {
      std::this_thread::sleep_for(kPollPeriod);
      task = ledger.find(task.id).value();
    }
    while (writes_report(task)) std::this_thread::sleep_for(kPollPeriod);
    std::printf("task %lld %s\n", static_cast<long long>(task.id), state_text(task).c_str());
    *exit_code = task.exit_code ? static_cast<ExitCode>(*task.exit_code) : ExitCode::kRunFailed;
  });
}

}  // namespace

void add_task(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command =
      app.add_subcommand("task", "List, stop, pause, resize and wait for launches of this user on this machine");
  command->require_subcommand(1);
  add_task_list(*command);
  add_task_show(*command);
  add_task_kill(*command);
  add_task_pause(*command, "pause",
                 "Make tasks save a checkpoint, give up their slots, and wait until they are activated", true);
  add_task_pause(*command, "activate", "Queue paused tasks again; they go on from their checkpoints", false);
  add_task_resize(*command);
  add_task_wait(*command, exit_code);
}

}  // namespace dtrain::cli
