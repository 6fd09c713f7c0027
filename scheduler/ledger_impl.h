// The implementation of Ledger: the open file, the processes that own tasks, and the steps of its operations. Private
// to scheduler; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <sys/types.h>

#include "dtrain/scheduler/ledger.h"
#include "queue.h"
#include "sqlite.h"

namespace dtrain::scheduler {

// The scope within which a pid identifies a process.
struct Place {
  std::string boot;        // the boot id of the machine
  std::string namespace_;  // its PID namespace
  bool operator==(const Place&) const = default;
};

Place this_place();

// Identifies a process so that no later process with the same pid is taken for it.
struct ProcessKey {
  Place place;
  pid_t pid = 0;
  std::uint64_t ticks = 0;  // its start time
};

ProcessKey key_of(pid_t pid, const Place& here);

enum class Life { kAlive, kGone, kUnknown };  // unknown: this process cannot see the other one's PID namespace

Life life_of(const ProcessKey& process, const Place& here);

// True if a rank of this launcher (or mpirun, which starts ranks) lives, even one that the ledger lacks. A rank is a
// process of this user with the launcher's mark (rank_mark.h) that was started as ranks are, in its own group in the
// launcher's session. A process that a rank's program leaves running is no rank, even if it has inherited the mark.
bool has_ranks(const ProcessKey& launcher);

// Sends SIGKILL to this process, and never to a later one with its pid.
void kill_process(const ProcessKey& process, const Place& here);

// The lease is for launches that cannot see the owner's process; it is renewed when less than half of it is left.
inline constexpr Nanoseconds kLease = std::chrono::seconds(30);

// Opens the file with all its tables. Its calls wait for other writers.
Database open_ledger_file(const std::filesystem::path& folder);

// Return text such as "node-1:0,1;node-2:0", or read it.
std::string to_text(const Claim& claim);
Claim claim_of(std::string_view text);
std::string to_text(const TaskRequest& request);
TaskRequest request_of(const std::string& text);

// Reads the columns of an order for another number of slots.
std::optional<Resize> resize_of(std::int64_t slots, const std::string& why);

// A task that has not ended and may be asked to save and to go on.
struct YieldingTask {
  TaskState state = TaskState::kQueued;
  bool is_paused = false;
  int slots = 0;
  std::optional<Resize> resize;
  TaskRequest request;  // as it was submitted
};

// A task that has not ended, with its owner.
struct Owned {
  TaskId id = 0;
  TaskState state = TaskState::kQueued;
  ProcessKey owner;
  Nanoseconds lease{0};    // monotonic clock
  Nanoseconds entered{0};  // monotonic clock: start of this state
};

// The request of a queued task, with the text that it was read from.
struct ReadRequest {
  std::string text;
  TaskRequest request;
  std::optional<Elastic> elastic;  // as the task was submitted
};

// Returns the numbers of slots of a task that may have `most` now; 0: it is not elastic.
std::optional<Elastic> elastic_now(std::optional<Elastic> elastic, std::int64_t most);

struct Ledger::Impl {
  Database database;
  const Clock& clock;
  Place here = this_place();
  std::map<TaskId, ReadRequest> requests;  // of queued tasks
  // The last result of try_claim(), which need not look again while nothing changes.
  std::int64_t seen_generation = -1;
  Nanoseconds seen_at{0};
  TaskId seen_task = 0;
  Waiting seen_waiting;
  // The last look of adapt_in_time().
  TaskId adapted_task = 0;
  Nanoseconds adapted_at{0};

  std::int64_t generation() { return database.value("SELECT value FROM generation"); }
  // Called inside a transaction: makes waiting processes look again.
  void changed() { database.execute("UPDATE generation SET value = value + 1"); }
  void enter_state(TaskId id, TaskState state, const std::string& reason);
  void finish(TaskId id, TaskState state, const std::string& reason, int exit_code);
  void hold(TaskId id, const Claim& claim);
  void release(TaskId id, const TaskRequest* resized);
  std::optional<TaskState> state_of(TaskId id);
  void renew_lease(TaskId id);

  // Empty: it has ended. ConfigError: there is no such task, or it cannot save and go on; the texts say what was asked
  // ("pause"), and what does it for a task of Slurm.
  std::optional<YieldingTask> yielding_task(TaskId id, const std::string& verb, const std::string& by_slurm);
  // As Ledger::request_slots(), in a transaction.
  bool ask_for_slots(TaskId id, int slots, const std::string& why);
  // Withdraws an order for this number of slots, which was carried out (no cause) or is refused.
  void answer_resize(TaskId id, int slots, const std::string& refused);

  const TaskRequest& request_of_queued(TaskId id);
  // Returns the queued tasks in order, without those whose owner is stopped and so has not renewed the lease, and
  // without those that have kept slots.
  std::vector<QueuedTask> queue(TaskId always);
  HeldSlots held_slots();
  Verdict judge_now(TaskId id);

  // --- ledger_elastic.cpp: what tasks give to others, and get from what is free ---
  struct Tasks {
    std::vector<RunningTask> running;
    std::map<TaskId, TaskRequest> requests;  // of elastic ones, which `running` refers to
  };
  // Returns the tasks that hold slots, even if they are queued.
  Tasks running_tasks();
  struct Look {
    Verdict verdict;
    std::vector<Yield> yields;  // what to ask of others first; there is no claim then
  };
  // Judges a queued task, which may make others give up slots.
  Look look(TaskId id);
  void ask_to_yield(const std::vector<Yield>& yields, TaskId to);
  // Returns the claim with which a queued task goes on that has kept slots: all of these, and free ones if it grows.
  Claim resumed_claim(TaskId id, const Claim& kept, int slots);
  // An order to go on with other slots.
  struct Change {
    int slots = 0;
    Claim keeps;
    std::string why;
  };
  // Returns an order for an elastic task that trains: for fewer slots if it has more than it may have, or for more if
  // these are free and it has trained for some time (`at_once`: however long). Empty: it has what it may have.
  std::optional<Change> change_of(TaskId id, bool at_once);
  void order(TaskId id, const Change& change);
  // Orders such a change if it is time to look for one. Not in a transaction.
  void adapt_in_time(TaskId id);
  // Sets the most slots of an elastic task, as Ledger::request_slots().
  bool limit_slots(TaskId id, const TaskRequest& request, int most);
  // Returns the tasks that were asked and still hold slots, as text: "; task 3 saves and makes room". Empty: none.
  std::string makes_room(TaskId id);
  std::vector<ProcessKey> processes_of(TaskId id);

  // Returns the tasks that have not ended and meet a condition of SQL.
  std::vector<Owned> owned_tasks(const std::string& condition);
  bool is_owned(const Owned& task) const;
  // True if a process of a task whose owner is gone may still use the task's slots.
  bool leaves_something(const Owned& task);
  // Advances a task whose owner is gone towards its end. True: its state has changed.
  bool advance_ended(const Owned& task);

  // Passes the tasks that meet a condition of SQL to `see`, by id.
  void read_tasks(const std::string& condition, const std::function<void(Task&&)>& see);
};

}  // namespace dtrain::scheduler
