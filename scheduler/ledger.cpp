#include "dtrain/scheduler/ledger.h"

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "ledger_impl.h"

namespace dtrain::scheduler {
namespace {

using Kind = Transaction::Kind;

// try_claim() looks again after this time, because owners may have died without changing the ledger's generation.
constexpr auto kLookAgain = std::chrono::milliseconds(500);

Error no_task(TaskId id) {
  return Error("there is no task " + std::to_string(id) + " in the ledger", "dtrain task list shows those there are");
}

}  // namespace

Ledger::Ledger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;
Ledger::~Ledger() = default;

Ledger Ledger::open(const std::filesystem::path& folder, const Clock& clock) {
  return Ledger(std::unique_ptr<Impl>(new Impl{.database = open_ledger_file(folder), .clock = clock}));
}

TaskId Ledger::submit(const TaskRequest& request) {
  const ProcessKey owner = key_of(::getpid(), impl_->here);
  Transaction transaction(impl_->database, Kind::kWrite);
  impl_->database
      .prepare(
          "INSERT INTO tasks (name, state, reason, priority, slots, claim, run_dir, boot, namespace, pid, ticks, "
          "lease, placed_by_others, submitted, request, elastic_min, elastic_max) VALUES (?1, 0, '', ?2, ?3, '', ?4, "
          "?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)")
      .bind(request.name, request.priority, request.slots.slots, request.run_dir.string(), owner.place.boot,
            owner.place.namespace_, owner.pid, owner.ticks, (impl_->clock.monotonic() + kLease).count(),
            request.placed_by_others ? 1 : 0, impl_->clock.wall().count(), to_text(request),
            request.elastic ? request.elastic->min : 0, request.elastic ? request.elastic->max : 0)
      .run();
  const TaskId id = impl_->database.last_row_id();
  impl_->enter_state(id, TaskState::kQueued, "");
  transaction.commit();
  return id;
}

std::optional<Claim> Ledger::try_claim(TaskId id, Waiting* waiting) {
  Impl& impl = *impl_;
  const Nanoseconds now = impl.clock.monotonic();
  const bool fresh = impl.seen_task == id && now - impl.seen_at < kLookAgain;
  if (fresh && impl.seen_generation == impl.generation()) {
    if (waiting) *waiting = impl.seen_waiting;
    return std::nullopt;
  }
  impl.renew_lease(id);
  free_stale();
  const auto remember = [&](const Verdict& verdict, std::int64_t generation) {
    impl.seen_task = id;
    impl.seen_at = now;
    impl.seen_generation = generation;
    impl.seen_waiting = verdict.waiting;
    if (waiting) *waiting = verdict.waiting;
  };
  {  // nearly all calls end here, without holding up writers
    Transaction transaction(impl.database, Kind::kRead);
    const std::int64_t generation = impl.generation();
    const Impl::Look look = impl.look(id);
    transaction.commit();
    if (!look.verdict.claim && look.yields.empty()) {
      remember(look.verdict, generation);
      return std::nullopt;
    }
  }
  // The task is judged again with the write lock held: another launch may have claimed the same slots since the read.
  Transaction transaction(impl.database, Kind::kWrite);
  Impl::Look look = impl.look(id);
  if (!look.verdict.claim) {
    if (!look.yields.empty()) {
      impl.ask_to_yield(look.yields, id);
      look = impl.look(id);
    }
    const std::int64_t generation = impl.generation();
    transaction.commit();
    remember(look.verdict, generation);
    return std::nullopt;
  }
  impl.hold(id, *look.verdict.claim);
  impl.database.prepare("UPDATE tasks SET started = ?1 WHERE id = ?2").bind(impl.clock.wall().count(), id).run();
  impl.enter_state(id, TaskState::kStarting, "");
  transaction.commit();
  return look.verdict.claim;
}

void Ledger::set_state(TaskId id, TaskState state, const std::string& reason) {
  if (has_ended(state)) throw Error("a task is ended by end(), not by its state");
  Transaction transaction(impl_->database, Kind::kWrite);
  const auto before = impl_->state_of(id);
  if (!before) throw no_task(id);
  if (!has_ended(*before) && *before != state) impl_->enter_state(id, state, reason);
  transaction.commit();
}

void Ledger::add_process(TaskId id, const std::string& name, pid_t pid) {
  const ProcessKey key = key_of(pid, impl_->here);
  impl_->database.prepare("INSERT INTO processes VALUES (?1, ?2, ?3, ?4, ?5, ?6)")
      .bind(id, name, key.place.boot, key.place.namespace_, key.pid, key.ticks)
      .run();
}

Orders Ledger::orders(TaskId id) {
  Orders orders;
  {  // over before the lease is written
    Statement row = impl_->database.prepare(
        "SELECT kills, state, paused, yield_to, (SELECT name FROM tasks AS other WHERE other.id = tasks.yield_to), "
        "resize_to, resize_why, keeps FROM tasks WHERE id = ?1");
    if (!row.bind(id).step()) throw no_task(id);
    orders.kills = static_cast<int>(row.integer(0));
    const auto state = static_cast<TaskState>(row.integer(1));
    orders.lost = has_ended(state);
    if (!orders.lost && state != TaskState::kQueued) {
      if (row.integer(3) != 0 && row.view(7).empty())
        orders.yield = "preempted by task " + std::to_string(row.integer(3)) + " (" + row.text(4) + ")";
      if (row.integer(2) != 0) orders.yield = "dtrain task pause";
    }
    orders.resize = resize_of(row.integer(5), row.text(6));
  }
  impl_->renew_lease(id);
  impl_->adapt_in_time(id);
  return orders;
}

void Ledger::requeue(TaskId id, const std::string& reason, const TaskRequest* resized) {
  Transaction transaction(impl_->database, Kind::kWrite);
  const auto before = impl_->state_of(id);
  if (!before) throw no_task(id);
  if (has_ended(*before)) throw Error("task " + std::to_string(id) + " has ended and cannot be queued again");
  impl_->database.prepare("DELETE FROM processes WHERE task = ?1").bind(id).run();
  impl_->release(id, resized);
  impl_->enter_state(id, TaskState::kQueued, reason);
  transaction.commit();
}

void Ledger::refuse_slots(TaskId id, int slots, const std::string& cause) {
  Transaction transaction(impl_->database, Kind::kWrite);
  impl_->answer_resize(id, slots, cause);
  impl_->changed();
  transaction.commit();
}

bool Ledger::request_slots(TaskId id, int slots, const std::string& why) {
  if (slots < 1) throw ConfigError("a task cannot go on with " + count_of(slots, "slot"));
  Transaction transaction(impl_->database, Kind::kWrite);
  if (!impl_->ask_for_slots(id, slots, why)) return false;
  transaction.commit();
  return true;
}

bool Ledger::set_paused(TaskId id, bool paused) {
  Transaction transaction(impl_->database, Kind::kWrite);
  const auto task = impl_->yielding_task(id, "pause", "scontrol requeue, hold and release do");
  if (!task || task->is_paused == paused) return false;
  impl_->database.prepare("UPDATE tasks SET paused = ?1 WHERE id = ?2").bind(paused ? 1 : 0, id).run();
  if (task->state == TaskState::kQueued && paused) impl_->hold(id, {});
  if (task->state == TaskState::kQueued)
    impl_->enter_state(id, TaskState::kQueued, paused ? "dtrain task pause" : "dtrain task activate");
  impl_->changed();
  transaction.commit();
  return true;
}

void Ledger::end(TaskId id, TaskState state, const std::string& reason, int exit_code) {
  if (!has_ended(state)) throw Error("a task does not end as " + to_string(state));
  Transaction transaction(impl_->database, Kind::kWrite);
  const auto before = impl_->state_of(id);
  if (!before) throw no_task(id);
  if (!has_ended(*before)) impl_->finish(id, state, reason, exit_code);
  transaction.commit();
}

std::vector<StateChange> Ledger::history(TaskId id) {
  std::vector<StateChange> changes;
  Statement row = impl_->database.prepare("SELECT state, time, reason FROM changes WHERE task = ?1 ORDER BY rowid");
  row.bind(id);
  while (row.step()) {
    changes.push_back({static_cast<TaskState>(row.integer(0)), Nanoseconds(row.integer(1)), row.text(2)});
  }
  return changes;
}

std::vector<Task> Ledger::list(Which which) {
  std::vector<Task> tasks;
  visit(which, [&](Task&& task) { tasks.push_back(std::move(task)); });
  return tasks;
}

void Ledger::visit(Which which, const std::function<void(Task&&)>& see) {
  free_stale();
  impl_->read_tasks(which == Which::kAll ? "1" : "state < 4", see);
}

std::optional<Task> Ledger::find(TaskId id) {
  free_stale();
  std::optional<Task> found;
  impl_->read_tasks("id = " + std::to_string(id), [&](Task&& task) { found = std::move(task); });
  return found;
}

}  // namespace dtrain::scheduler
