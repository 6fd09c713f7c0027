#include "dtrain/scheduler/ledger.h"

#include <unistd.h>

#include "dtrain/base/error.h"
#include "ledger_impl.h"

namespace dtrain::scheduler {
namespace {

using Kind = Transaction::Kind;

// Owners may have died without changing the ledger, so an unchanged generation is not enough.
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
          "lease, placed_by_others, submitted, request) VALUES (?1, 0, '', ?2, ?3, '', ?4, ?5, ?6, ?7, ?8, ?9, ?10, "
          "?11, ?12)")
      .bind(request.name, request.priority, request.slots.slots, request.run_dir.string(), owner.place.boot,
            owner.place.namespace_, owner.pid, owner.ticks, (impl_->clock.monotonic() + kLease).count(),
            request.placed_by_others ? 1 : 0, impl_->clock.wall().count(), to_text(request))
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
    const Verdict verdict = impl.judge_now(id);
    transaction.commit();
    if (!verdict.claim) {
      remember(verdict, generation);
      return std::nullopt;
    }
  }
  // Judged again with the write lock held: another launch may have claimed the same slots since the read.
  Transaction transaction(impl.database, Kind::kWrite);
  const std::int64_t generation = impl.generation();
  const Verdict verdict = impl.judge_now(id);
  if (!verdict.claim) {
    transaction.commit();
    remember(verdict, generation);
    return std::nullopt;
  }
  for (const ClaimedShare& share : *verdict.claim) {
    for (std::size_t i = 0; i < share.slots.size(); ++i) {  // the table's key rules out a second holder
      const SlotKey key = slot_key(share.agent, share.gpus, i, share.slots[i]);
      impl.database.prepare("INSERT INTO claims VALUES (?1, ?2, ?3)").bind(key.name, key.index, id).run();
    }
  }
  impl.database.prepare("UPDATE tasks SET claim = ?1, started = ?2 WHERE id = ?3")
      .bind(to_text(*verdict.claim), impl.clock.wall().count(), id)
      .run();
  impl.enter_state(id, TaskState::kStarting, "");
  transaction.commit();
  return verdict.claim;
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
    Statement row = impl_->database.prepare("SELECT kills, state FROM tasks WHERE id = ?1");
    if (!row.bind(id).step()) throw no_task(id);
    orders.kills = static_cast<int>(row.integer(0));
    orders.lost = has_ended(static_cast<TaskState>(row.integer(1)));
  }
  impl_->renew_lease(id);
  return orders;
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
