// What the ledger asks of tasks that hold slots: to give some or all of them to others, or to go on with more.
#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "free_slots.h"
#include "ledger_impl.h"

namespace dtrain::scheduler {
namespace {

// An elastic task looks for free slots this often.
constexpr auto kLookForSlots = std::chrono::milliseconds(500);

const RunningTask* task_of(const std::vector<RunningTask>& tasks, TaskId id) {
  const auto found = std::ranges::find(tasks, id, &RunningTask::id);
  return found == tasks.end() ? nullptr : &*found;
}

}  // namespace

Ledger::Impl::Tasks Ledger::Impl::running_tasks() {
  Tasks tasks;
  Statement row = database.prepare(
      "SELECT id, priority, started, state, yield_to, paused, request, claim, keeps, resize_to, elastic_max, name FROM "
      "tasks WHERE state < 4 AND (state > 0 OR claim <> '') AND NOT placed_by_others");
  while (row.step()) {
    RunningTask task{.id = row.integer(0),
                     .priority = static_cast<int>(row.integer(1)),
                     .started = Nanoseconds(row.maybe_integer(2).value_or(0))};
    TaskRequest request = request_of(row.text(6));
    task.can_yield = request.can_yield && request.preemption;
    const auto state = static_cast<TaskState>(row.integer(3));
    if (row.integer(5) != 0) {
      task.is_leaving = true;
    } else if (state == TaskState::kQueued) {
      task.keeps = claim_of(row.view(7));
    } else if (!row.view(8).empty()) {
      task.keeps = claim_of(row.view(8));
    } else {
      task.is_leaving = state == TaskState::kStopping || row.integer(4) != 0 || row.integer(9) != 0;
    }
    request.elastic = elastic_now(request.elastic, row.integer(10));
    if (request.elastic) {
      request.name = row.text(11);
      task.claim = claim_of(row.view(7));
      task.request = &tasks.requests.emplace(task.id, std::move(request)).first->second;
    }
    tasks.running.push_back(std::move(task));
  }
  return tasks;
}

Ledger::Impl::Look Ledger::Impl::look(TaskId id) {
  Look look{.verdict = judge_now(id)};
  std::optional<Claim>& claim = look.verdict.claim;
  const std::vector<QueuedTask> tasks = queue(id);
  const auto self = std::ranges::find(tasks, id, &QueuedTask::id);
  if (self == tasks.end() || (claim && slots_of(*claim) >= self->request->wanted())) return look;
  if (self->request->preemption) {
    look.yields = choose_yields(std::span(tasks.begin(), self + 1), held_slots(), running_tasks().running);
  }
  const std::string room = makes_room(id);
  if (claim && look.yields.empty() && room.empty()) return look;
  if (claim) {
    look.verdict.waiting.reason = std::to_string(slots_of(*claim)) + " of the " +
                                  count_of(self->request->wanted(), "slot") + " that it asks for are free";
    claim.reset();
  }
  look.verdict.waiting.reason += room;
  return look;
}

void Ledger::Impl::ask_to_yield(const std::vector<Yield>& yields, TaskId to) {
  Statement row = database.prepare("SELECT name FROM tasks WHERE id = ?1");
  row.bind(to).step();
  const std::string receiver = "task " + std::to_string(to) + " (" + row.text(0) + ")";
  for (const Yield& yield : yields) {
    database.prepare("UPDATE tasks SET yield_to = ?1 WHERE id = ?2").bind(to, yield.id).run();
    if (yield.keeps.empty()) continue;
    order(yield.id, {.slots = slots_of(yield.keeps), .keeps = yield.keeps, .why = "shrinking for " + receiver});
  }
  changed();
}

Claim Ledger::Impl::resumed_claim(TaskId id, const Claim& kept, int slots) {
  if (slots <= slots_of(kept)) return kept;
  return larger_claim(id, queue(0), held_slots(), running_tasks().running).value_or(kept);
}

std::optional<Ledger::Impl::Change> Ledger::Impl::change_of(TaskId id, bool at_once) {
  Statement row = database.prepare("SELECT state, entered, yield_to FROM tasks WHERE id = ?1 AND elastic_max > 0");
  if (!row.bind(id).step() || row.integer(2) != 0) return std::nullopt;
  const auto state = static_cast<TaskState>(row.integer(0));
  if (state != TaskState::kStarting && state != TaskState::kRunning) return std::nullopt;
  const Tasks tasks = running_tasks();
  const RunningTask* task = task_of(tasks.running, id);
  if (!task || !task->is_elastic() || task->is_leaving || task->keeps) return std::nullopt;
  const Elastic& elastic = *task->request->elastic;
  const int own = slots_of(task->claim);
  if (own > elastic.max) {
    for (int slots = elastic.max; slots >= elastic.min; --slots) {
      if (auto part = part_of(*task, slots)) return Change{slots, *std::move(part), "dtrain task resize"};
    }
    return Change{elastic.max, {}, "dtrain task resize"};
  }
  const bool has_settled =
      state == TaskState::kRunning && clock.monotonic() - Nanoseconds(row.integer(1)) >= elastic.grow_after;
  if (own == elastic.max || !(has_settled || at_once)) return std::nullopt;
  const auto larger = larger_claim(id, queue(0), held_slots(), tasks.running);
  if (!larger) return std::nullopt;
  return Change{slots_of(*larger), task->claim, "growing"};
}

void Ledger::Impl::order(TaskId id, const Change& change) {
  database.prepare("UPDATE tasks SET resize_to = ?1, resize_why = ?2, resize_refused = '', keeps = ?3 WHERE id = ?4")
      .bind(change.slots, change.why, to_text(change.keeps), id)
      .run();
  changed();
}

void Ledger::Impl::adapt_in_time(TaskId id) {
  const Nanoseconds now = clock.monotonic();
  if (adapted_task == id && now - adapted_at < kLookForSlots) return;
  adapted_task = id;
  adapted_at = now;
  {  // nearly all looks end here, without holding up writers
    Transaction transaction(database, Transaction::Kind::kRead);
    const bool has_change = change_of(id, false).has_value();
    transaction.commit();
    if (!has_change) return;
  }
  Transaction transaction(database, Transaction::Kind::kWrite);
  if (const auto change = change_of(id, false)) order(id, *change);
  transaction.commit();
}

bool Ledger::Impl::limit_slots(TaskId id, const TaskRequest& request, int most) {
  const Elastic& elastic = *request.elastic;
  if (most < elastic.min || most > elastic.max) {
    throw ConfigError("task " + std::to_string(id) + " trains with " + std::to_string(elastic.min) + " to " +
                          count_of(elastic.max, "slot") + ", not with " + std::to_string(most),
                      "resources.elastic of its experiment sets these numbers");
  }
  if (!largest_claim(request, elastic.min, most, {})) {
    throw ConfigError("task " + std::to_string(id) + " never fits on its cluster with " + std::to_string(elastic.min) +
                      " to " + count_of(most, "slot"));
  }
  bool has_changed = false;
  {
    Statement row = database.prepare("SELECT elastic_max FROM tasks WHERE id = ?1");
    row.bind(id).step();
    has_changed = row.integer(0) != most;
  }
  database.prepare("UPDATE tasks SET elastic_max = ?1, resize_refused = '' WHERE id = ?2").bind(most, id).run();
  if (const auto change = change_of(id, true)) {
    order(id, *change);
    has_changed = true;
  }
  if (has_changed) changed();
  return has_changed;
}

}  // namespace dtrain::scheduler
