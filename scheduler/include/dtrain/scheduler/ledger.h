// The ledger records the tasks that hold slots, those that wait, and the ends of earlier ones. It is one SQLite file
// for each user and launching host, which all launches there share. There is no server: every process that reads the
// ledger frees the slots of processes that are gone.
//
// A task belongs to the process that submitted it, its owner, which is identified by boot id, PID namespace, pid and
// start time. For launches that cannot see this process, the owner keeps a lease, which orders() renews. Slots are
// claimed in one transaction and are free again when the owner calls end(), or when the owner and every process it has
// recorded are gone. A Ledger belongs to one thread; a process that forks opens a new one in the child.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/scheduler/placement.h"

namespace dtrain::scheduler {

enum class TaskState { kQueued, kStarting, kRunning, kStopping, kDone, kFailed, kInterrupted, kPaused };

// Returns "queued", "starting", …
std::string to_string(TaskState state);
// True if the task is done, failed or interrupted: it then holds no slots and never changes again.
bool has_ended(TaskState state);

using TaskId = std::int64_t;  // 1, 2, 3, … in the order of submission

// The numbers of slots of a task that goes on with more or fewer while it trains (resources.elastic).
struct Elastic {
  int min = 1;
  int wanted = 1;  // min to max: for so many it makes others give up theirs
  int max = 1;
  Nanoseconds grow_after = std::chrono::seconds(60);  // so long it trains before it gets more
  bool operator==(const Elastic&) const = default;
};

// The request of a launch.
struct TaskRequest {
  std::string name;  // of the experiment; max_slots counts all tasks of this name
  int priority = 42;
  SlotRequest slots;
  std::optional<Elastic> elastic;  // empty: it needs exactly as many as `slots` says
  std::optional<int> max_slots;    // the most that running tasks of this name may hold together
  std::vector<AgentSlots> agents;  // the cluster as this launch sees it; the ledger adds the free slots
  std::filesystem::path run_dir;
  // Another system (Slurm) queues and places the task. In this ledger it waits for no other task and holds no slots.
  bool placed_by_others = false;
  bool can_yield = false;   // it can save, give up its slots and go on later: `dtrain task pause`
  bool preemption = false;  // tasks with a lower priority number may make it do so, and it may make others do so

  int least() const { return elastic ? elastic->min : slots.slots; }
  int wanted() const { return elastic ? std::min(elastic->wanted, elastic->max) : slots.slots; }
  int most() const { return elastic ? elastic->max : slots.slots; }
};

// Slots of one agent, by their index there, ascending.
struct ClaimedShare {
  std::string agent;
  std::vector<int> slots;         // if they are made of cores: 0, 1, … of this task
  std::vector<std::string> gpus;  // the UUIDs of their GPUs; empty: not known, or they are cores
  CoreGroups cores;               // for each slot the cores that it is made of, by CoreUnit::number; empty: fixed slots
  bool operator==(const ClaimedShare&) const = default;
};
using Claim = std::vector<ClaimedShare>;  // in the order of the ranks

int slots_of(const Claim& claim);

// Takes this many slots of the request from the free cores of an agent whose slots are made of cores. A request for all
// cores divides all of the agent's cores.
ClaimedShare share_of_cores(const AgentSlots& agent, const SlotRequest& request, int slots,
                            std::span<const CoreUnit> free);

// The reason for which a queued task has not started.
struct Waiting {
  std::vector<TaskId> behind;  // tasks that hold slots that it needs, or are before it in the queue
  std::string reason;          // "task 3 (mnist) holds 2 of 2 slots of node-1"
  bool operator==(const Waiting&) const = default;
};

struct StateChange {
  TaskState state = TaskState::kQueued;
  Nanoseconds time{0};  // wall clock
  std::string reason;
};

// A task that has to save and to go on with another number of slots.
struct Resize {
  int slots = 0;
  std::string why;  // "dtrain task resize"
  bool operator==(const Resize&) const = default;
};

// One launch, as the ledger records it from its submission on.
struct Task {
  TaskId id = 0;
  std::string name;
  TaskState state = TaskState::kQueued;
  std::string reason;  // reason for this state; may be empty
  int priority = 42;
  int slots = 0;
  int least = 0;  // with which an elastic task may train; 0: it is not elastic
  int most = 0;
  int cores_per_slot = 0;  // as requested; 0: all, or not known any more
  Claim claim;             // the slots that it holds, or held at its end; empty while queued
  std::string run_dir;
  pid_t launcher_pid = 0;
  Nanoseconds submitted{0};            // wall clock
  std::optional<Nanoseconds> started;  // when it got its slots
  std::optional<Nanoseconds> ended;
  std::optional<int> exit_code;    // of the launch; set once it has ended
  std::optional<Waiting> waiting;  // while queued
  std::optional<Resize> resize;    // asked for, and neither carried out nor refused yet
  std::string resize_refused;      // why its owner has refused the last other number; empty: it has not
};

// Requests of other processes to the owner of a task.
struct Orders {
  int kills = 0;      // 1: stop as after Ctrl-C; more: stop at once
  bool lost = false;  // another process has ended the task because its lease ran out: it holds no slots any more
  // The cause for which the task must save and give up its slots, "preempted by task 7 (mnist)"; empty: none.
  std::string yield;
  std::optional<Resize> resize;  // to be refused (refuse_slots()), or carried out (requeue())
};

enum class KillResult { kAsked, kEnded, kHadEnded };

enum class Which { kAll, kNotEnded };

class Ledger {
 public:
  // Opens folder/ledger.db, and makes folder and file if they are missing. ConfigError: the folder is on a network file
  // system, or the file is of another version of dtrain. SystemError: it cannot be written.
  static Ledger open(const std::filesystem::path& folder, const Clock& clock);
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;
  ~Ledger();

  // --- by the owner of a task ---
  // Queues a task, which this process owns.
  TaskId submit(const TaskRequest& request);
  // Returns the task's slots once it is next in the queue and they are free; the task is then starting. Empty: not yet;
  // `waiting` has the reason. Every call renews the lease. If preemption is allowed, asks other tasks to give up the
  // slots that this one needs. Error: the task is no longer queued.
  std::optional<Claim> try_claim(TaskId id, Waiting* waiting = nullptr);
  // Sets a state that does not end the task. The present state again has no effect.
  void set_state(TaskId id, TaskState state, const std::string& reason = {});
  // Records a process that uses the task's slots ("rank 0", "mpirun"). To be called right after its start.
  void add_process(TaskId id, const std::string& name, pid_t pid);
  // Returns the requests to the owner, and renews the lease in time. Cheap enough for a few calls a second.
  Orders orders(TaskId id);
  // Frees the slots and queues the task again, in its old place. To be called when no process of the task that uses its
  // slots is left. `resized`: the request with another number of slots, or null: it stays. Its slots and agents count,
  // and an order for that number has been carried out.
  void requeue(TaskId id, const std::string& reason, const TaskRequest* resized = nullptr);
  // Answers an order for this number of slots with `cause`; empty: the task has that number. A later order stays.
  void refuse_slots(TaskId id, int slots, const std::string& cause);
  // Frees the slots. To be called when no process of the task is left.
  void end(TaskId id, TaskState state, const std::string& reason, int exit_code);

  // --- by any process ---
  // These calls first free the slots of processes that are gone.

  // Returns the tasks in the order of their ids; queued ones have the reason for which they wait.
  std::vector<Task> list(Which which = Which::kAll);
  // Like list(), but passes the tasks to `see` one by one, because there may be many. `see` must not use this ledger.
  void visit(Which which, const std::function<void(Task&&)>& see);
  std::optional<Task> find(TaskId id);
  std::vector<StateChange> history(TaskId id);
  // Asks the owner to stop the task; a second request stops it at once. If the owner is gone, kills the processes that
  // it left. ConfigError: there is no such task.
  KillResult request_kill(TaskId id);
  // true: asks the owner to save and to give up the slots until the task is activated (false); a queued task does not
  // start until then. Returns false if nothing has changed or the task has ended. ConfigError: there is no such task,
  // or it cannot save and go on.
  bool set_paused(TaskId id, bool paused);
  // Asks the owner to save, to queue again with this number of slots, and to go on; a queued task only changes its
  // request. A later order replaces one that waits. The owner may refuse it (Task::resize_refused). An elastic task has
  // at most so many slots from now on, and gets more than its own as they are free. Returns false if the task has that
  // number or is asked for it already, or has ended. ConfigError: there is no such task, it cannot save and go on, or
  // `slots` is not a number that it may have.
  bool request_slots(TaskId id, int slots, const std::string& why);
  // Ends tasks whose owner is gone, and frees their slots if none of their processes is left. True: the ledger changed.
  bool free_stale();

 private:
  struct Impl;
  explicit Ledger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::scheduler
