#include "ledger_impl.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "free_slots.h"

namespace dtrain::scheduler {

void Ledger::Impl::enter_state(TaskId id, TaskState state, const std::string& reason) {
  database.prepare("UPDATE tasks SET state = ?1, reason = ?2, entered = ?3 WHERE id = ?4")
      .bind(static_cast<int>(state), reason, clock.monotonic().count(), id)
      .run();
  database.prepare("INSERT INTO changes VALUES (?1, ?2, ?3, ?4)")
      .bind(id, static_cast<int>(state), clock.wall().count(), reason)
      .run();
  changed();
}

// Ends a task. Claims and processes are removed in the same transaction as the state changes, so slots are never free
// while a task counts as running, nor held by a task that has ended.
void Ledger::Impl::finish(TaskId id, TaskState state, const std::string& reason, int exit_code) {
  enter_state(id, state, reason);
  database.prepare("UPDATE tasks SET ended = ?1, exit_code = ?2, request = NULL WHERE id = ?3")
      .bind(clock.wall().count(), exit_code, id)
      .run();
  database.prepare("DELETE FROM claims WHERE task = ?1").bind(id).run();
  database.prepare("DELETE FROM processes WHERE task = ?1").bind(id).run();
}

std::optional<TaskState> Ledger::Impl::state_of(TaskId id) {
  Statement row = database.prepare("SELECT state FROM tasks WHERE id = ?1");
  return row.bind(id).step() ? std::optional(static_cast<TaskState>(row.integer(0))) : std::nullopt;
}

void Ledger::Impl::renew_lease(TaskId id) {
  const Nanoseconds now = clock.monotonic();
  {  // ends before the lease is written: SQLite refuses a write at once while an older read is still open
    Statement row = database.prepare("SELECT lease FROM tasks WHERE id = ?1");
    if (!row.bind(id).step() || Nanoseconds(row.integer(0)) - now > kLease / 2) return;
  }
  database.prepare("UPDATE tasks SET lease = ?1 WHERE id = ?2 AND state < 4").bind((now + kLease).count(), id).run();
}

std::optional<Resize> resize_of(std::int64_t slots, const std::string& why) {
  return slots == 0 ? std::nullopt : std::optional(Resize{static_cast<int>(slots), why});
}

std::optional<Elastic> elastic_now(std::optional<Elastic> elastic, std::int64_t most) {
  if (most == 0) return std::nullopt;
  if (elastic) elastic->max = static_cast<int>(most);
  return elastic;
}

std::optional<YieldingTask> Ledger::Impl::yielding_task(TaskId id, const std::string& verb,
                                                        const std::string& by_slurm) {
  const std::string name = "task " + std::to_string(id);
  Statement row = database.prepare(
      "SELECT state, paused, placed_by_others, request, slots, resize_to, resize_why FROM tasks WHERE id = ?1");
  if (!row.bind(id).step()) throw ConfigError("there is no " + name, "dtrain task list shows those there are");
  const auto state = static_cast<TaskState>(row.integer(0));
  if (has_ended(state)) return std::nullopt;
  if (row.integer(2) != 0) throw ConfigError(name + " is placed by Slurm, which dtrain does not " + verb, by_slurm);
  TaskRequest request = request_of(row.text(3));
  if (!request.can_yield) {
    throw ConfigError(name + " cannot save and go on: it is a mock run, or of another version of dtrain");
  }
  return YieldingTask{.state = state,
                      .is_paused = row.integer(1) != 0,
                      .slots = static_cast<int>(row.integer(4)),
                      .resize = resize_of(row.integer(5), row.text(6)),
                      .request = std::move(request)};
}

bool Ledger::Impl::ask_for_slots(TaskId id, int slots, const std::string& why) {
  const auto task = yielding_task(id, "resize",
                                  "dtrain task kill " + std::to_string(id) +
                                      " stops it, and dtrain launch "
                                      "--continue RUN --set resources.slots_per_trial=" +
                                      std::to_string(slots) + " goes on");
  if (task && task->request.elastic) return limit_slots(id, task->request, slots);
  if (!task || slots == (task->resize ? task->resize->slots : task->slots)) return false;
  // A task that stops may be about to take the number of the earlier order: its owner compares it with this one.
  const bool is_back = slots == task->slots && task->state != TaskState::kStopping;
  database.prepare("UPDATE tasks SET resize_to = ?1, resize_why = ?2, resize_refused = '' WHERE id = ?3")
      .bind(is_back ? 0 : slots, why, id)
      .run();
  changed();
  return true;
}

void Ledger::Impl::answer_resize(TaskId id, int slots, const std::string& refused) {
  // The queue does not ask again what the owner has refused: only `dtrain task resize` makes the task elastic again.
  database
      .prepare(
          "UPDATE tasks SET resize_to = 0, resize_refused = ?1, keeps = '', elastic_max = CASE WHEN ?1 = '' THEN "
          "elastic_max ELSE 0 END, yield_to = CASE WHEN keeps = '' THEN yield_to ELSE 0 END WHERE id = ?2 AND "
          "(resize_to "
          "= ?3 OR (resize_to = 0 AND ?1 <> ''))")
      .bind(refused, id, slots)
      .run();
}

const TaskRequest& Ledger::Impl::request_of_queued(TaskId id) {
  Statement row = database.prepare("SELECT request, name, priority, elastic_max FROM tasks WHERE id = ?1");
  row.bind(id).step();
  ReadRequest& known = requests[id];
  if (known.text != row.view(0)) {
    known.text = row.text(0);
    known.request = request_of(known.text);
    known.elastic = known.request.elastic;
    known.request.name = row.text(1);
    known.request.priority = static_cast<int>(row.integer(2));
  }
  known.request.elastic = elastic_now(known.elastic, row.integer(3));
  return known.request;
}

std::vector<QueuedTask> Ledger::Impl::queue(TaskId always) {
  std::vector<QueuedTask> tasks;
  Statement row = database.prepare(
      "SELECT id FROM tasks WHERE state = 0 AND claim = '' AND NOT placed_by_others AND NOT paused AND (lease > ?1 OR "
      "id = ?2) ORDER BY priority, id");
  row.bind(clock.monotonic().count(), always);
  while (row.step()) tasks.push_back({row.integer(0), nullptr});
  std::map<TaskId, ReadRequest> still_queued;
  for (const QueuedTask& task : tasks) {
    request_of_queued(task.id);
    still_queued.insert(requests.extract(task.id));
  }
  requests = std::move(still_queued);
  for (QueuedTask& task : tasks) task.request = &requests.at(task.id).request;
  return tasks;
}

HeldSlots Ledger::Impl::held_slots() {
  HeldSlots held;
  Statement row =
      database.prepare("SELECT agent, slot, task, name, slots FROM claims JOIN tasks ON tasks.id = claims.task");
  while (row.step()) {
    held[row.text(0)][static_cast<int>(row.integer(1))] = {row.integer(2), row.text(3),
                                                           static_cast<int>(row.integer(4))};
  }
  return held;
}

Verdict Ledger::Impl::judge_now(TaskId id) {
  Statement row = database.prepare("SELECT state, placed_by_others, paused, claim FROM tasks WHERE id = ?1");
  if (!row.bind(id).step() || static_cast<TaskState>(row.integer(0)) != TaskState::kQueued) {
    throw Error("task " + std::to_string(id) + " is no longer queued",
                "dtrain task show " + std::to_string(id) + " shows why");
  }
  if (row.integer(2) != 0) {
    return {.waiting = {.reason = "dtrain task activate " + std::to_string(id) + " lets it go on"}};
  }
  if (row.integer(1) != 0) return {.claim = Claim()};
  if (!row.view(3).empty()) {
    return {.claim = resumed_claim(id, claim_of(row.view(3)), request_of_queued(id).slots.slots)};
  }
  const std::vector<QueuedTask> tasks = queue(id);
  const auto self = std::find_if(tasks.begin(), tasks.end(), [&](const QueuedTask& task) { return task.id == id; });
  const auto place = static_cast<std::size_t>(self - tasks.begin()) + 1;
  return judge(std::span(tasks).first(place), held_slots(), std::span(tasks).subspan(place));
}

std::string Ledger::Impl::makes_room(TaskId id) {
  std::vector<std::string> ids;
  Statement row = database.prepare("SELECT id FROM tasks WHERE state IN (1, 2, 3) AND yield_to = ?1 ORDER BY id");
  row.bind(id);
  while (row.step()) ids.push_back(std::to_string(row.integer(0)));
  if (ids.empty()) return {};
  return ids.size() == 1 ? "; task " + ids.front() + " saves and makes room"
                         : "; tasks " + join(ids, ", ") + " save and make room";
}

// Gives a task these slots, and takes others that it held.
void Ledger::Impl::hold(TaskId id, const Claim& claim) {
  database.prepare("DELETE FROM claims WHERE task = ?1").bind(id).run();
  for (const SlotKey& key : keys_of(claim)) {  // the table's key rules out a second holder
    database.prepare("INSERT INTO claims VALUES (?1, ?2, ?3)").bind(key.name, key.index, id).run();
  }
  const int slots = slots_of(claim);
  database
      .prepare(
          "UPDATE tasks SET claim = ?1, slots = CASE WHEN elastic_max > 0 AND ?2 > 0 THEN ?2 ELSE slots END WHERE id = "
          "?3")
      .bind(to_text(claim), slots, id)
      .run();
}

// Frees the slots of a task that is queued again, but for those that it keeps because it only goes on with fewer or
// more (`resized`).
void Ledger::Impl::release(TaskId id, const TaskRequest* resized) {
  Claim kept;
  TaskRequest request;
  {
    Statement row =
        database.prepare("SELECT state, paused, claim, keeps, request, elastic_max, slots FROM tasks WHERE id = ?1");
    row.bind(id).step();
    const bool is_queued = static_cast<TaskState>(row.integer(0)) == TaskState::kQueued;
    if (resized && row.integer(1) == 0) kept = claim_of(row.view(is_queued ? 2 : 3));
    request = request_of(row.text(4));
    if (resized) {
      request.agents = resized->agents;
      request.slots = resized->slots;
    } else {
      request.slots.slots = row.integer(5) > 0 ? request.wanted() : static_cast<int>(row.integer(6));
    }
  }
  hold(id, kept);
  const int slots = kept.empty() ? request.slots.slots : slots_of(kept);
  database
      .prepare(
          "UPDATE tasks SET slots = ?1, request = ?2, yield_to = 0, resize_to = CASE WHEN keeps = '' THEN resize_to "
          "ELSE "
          "0 END, keeps = '' WHERE id = ?3")
      .bind(slots, to_text(request), id)
      .run();
  if (resized) answer_resize(id, resized->slots.slots, "");
}

std::vector<ProcessKey> Ledger::Impl::processes_of(TaskId id) {
  std::vector<ProcessKey> processes;
  Statement row = database.prepare("SELECT boot, namespace, pid, ticks FROM processes WHERE task = ?1");
  row.bind(id);
  while (row.step()) {
    processes.push_back(
        {{row.text(0), row.text(1)}, static_cast<pid_t>(row.integer(2)), static_cast<std::uint64_t>(row.integer(3))});
  }
  return processes;
}

void Ledger::Impl::read_tasks(const std::string& condition, const std::function<void(Task&&)>& see) {
  Transaction transaction(database, Transaction::Kind::kRead);
  Statement row = database.prepare(
      "SELECT id, name, state, reason, priority, slots, claim, run_dir, pid, submitted, started, ended, exit_code, "
      "paused, resize_to, resize_why, resize_refused, elastic_min, elastic_max FROM tasks WHERE " +
      condition + " ORDER BY id");
  const auto time = [&](int column) {
    const auto value = row.maybe_integer(column);
    return value ? std::optional(Nanoseconds(*value)) : std::nullopt;
  };
  while (row.step()) {
    Task task{.id = row.integer(0),
              .name = row.text(1),
              .state = static_cast<TaskState>(row.integer(2)),
              .reason = row.text(3),
              .priority = static_cast<int>(row.integer(4)),
              .slots = static_cast<int>(row.integer(5)),
              .least = static_cast<int>(row.integer(17)),
              .most = static_cast<int>(row.integer(18)),
              .cores_per_slot = 0,
              .claim = claim_of(row.view(6)),
              .run_dir = row.text(7),
              .launcher_pid = static_cast<pid_t>(row.integer(8)),
              .submitted = Nanoseconds(row.integer(9)),
              .started = time(10),
              .ended = time(11)};
    if (const auto code = row.maybe_integer(12)) task.exit_code = static_cast<int>(*code);
    task.resize = resize_of(row.integer(14), row.text(15));
    task.resize_refused = row.text(16);
    if (task.state == TaskState::kQueued) {
      Verdict verdict = judge_now(task.id);
      task.cores_per_slot = request_of_queued(task.id).slots.cores_per_slot;
      task.waiting = std::move(verdict.waiting);
      const std::string room = makes_room(task.id);
      task.waiting->reason += room;
      if (verdict.claim && room.empty()) task.waiting->reason = "about to start";
      if (row.integer(13) != 0) task.state = TaskState::kPaused;
    }
    see(std::move(task));
  }
  transaction.commit();
}

}  // namespace dtrain::scheduler
