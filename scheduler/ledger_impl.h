// The inside of Ledger: the open file, and the steps of its operations. Private to scheduler; one thread.
#pragma once

#include <map>

#include "dtrain/scheduler/ledger.h"
#include "owner.h"
#include "queue.h"
#include "sqlite.h"

namespace dtrain::scheduler {

// For launches that cannot see the owner's process; renewed when less than half of it is left.
inline constexpr Nanoseconds kLease = std::chrono::seconds(30);

// A file with all its tables, waiting for other writers.
Database open_ledger_file(const std::filesystem::path& folder);

// "node-1:0,1;node-2:0"
std::string to_text(const Claim& claim);
Claim claim_of(std::string_view text);
std::string to_text(const TaskRequest& request);
TaskRequest request_of(const std::string& text);

// A task that has not ended, and whose it is.
struct Owned {
  TaskId id = 0;
  TaskState state = TaskState::kQueued;
  ProcessKey owner;
  Nanoseconds lease{0};    // monotonic clock
  Nanoseconds entered{0};  // monotonic clock: when it came into this state
};

struct Ledger::Impl {
  Database database;
  const Clock& clock;
  Place here = this_place();
  std::map<TaskId, TaskRequest> requests;  // of queued tasks: they do not change
  // What try_claim saw last: while nothing changes there is no need to look again.
  std::int64_t seen_generation = -1;
  Nanoseconds seen_at{0};
  TaskId seen_task = 0;
  Waiting seen_waiting;

  std::int64_t generation() { return database.value("SELECT value FROM generation"); }
  // Inside of a transaction: makes waiting processes look again.
  void changed() { database.execute("UPDATE generation SET value = value + 1"); }
  void enter_state(TaskId id, TaskState state, const std::string& reason);
  void finish(TaskId id, TaskState state, const std::string& reason, int exit_code);
  std::optional<TaskState> state_of(TaskId id);
  void renew_lease(TaskId id);

  const TaskRequest& request_of_queued(TaskId id);
  // The queued tasks, in order; without those whose owner has not renewed the lease (it is stopped).
  std::vector<QueuedTask> queue(TaskId always);
  HeldSlots held_slots();
  Verdict judge_now(TaskId id);
  // Of a task that does not fit, where it may preempt: those that should make room. Asks them (in a transaction).
  std::vector<RunningTask> running_tasks();
  std::vector<TaskId> victims_of(TaskId id);
  void ask_to_yield(const std::vector<TaskId>& victims, TaskId to);
  // Those that were asked, and have not left yet, as text: "; task 3 saves and makes room". Empty: none.
  std::string makes_room(TaskId id);
  std::vector<ProcessKey> processes_of(TaskId id);

  // Tasks that have not ended, with a condition of SQL.
  std::vector<Owned> owned_tasks(const std::string& condition);
  bool is_owned(const Owned& task) const;
  // Of a task whose owner is gone: whether something of it may still use its slots.
  bool leaves_something(const Owned& task);
  // Advances a task whose owner is gone towards its end. True: its state has changed.
  bool advance_ended(const Owned& task);

  // Those that a condition of SQL names, by id.
  void read_tasks(const std::string& condition, const std::function<void(Task&&)>& see);
};

}  // namespace dtrain::scheduler
