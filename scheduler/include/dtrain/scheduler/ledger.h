// The ledger records the tasks that hold slots, those that wait, and the ends of earlier ones. It is one SQLite file
// for each user and launching host, which all launches there share. There is no server: every process that reads the
// ledger frees the slots of processes that are gone.
//
// A task belongs to the process that submitted it, its owner, which is identified by boot id, PID namespace, pid and
// start time. For launches that cannot see this process, the owner keeps a lease, which orders() renews. Slots are
// claimed in one transaction and are free again when the owner calls end(), or when the owner and every process it has
// recorded are gone. An object belongs to one thread; a process that forks opens a new one in the child.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/clock.h"
#include "dtrain/scheduler/task.h"

namespace dtrain::scheduler {

// Requests of other processes to the owner of a task.
struct Orders {
  int kills = 0;      // 1: stop as after Ctrl-C; more: stop at once
  bool lost = false;  // another process has ended the task because its lease ran out: it holds no slots any more
  // The cause for which the task must save and give up its slots, "preempted by task 7 (mnist)"; empty: none.
  std::string yield;
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
  // slots is left.
  void requeue(TaskId id, const std::string& reason);
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
  // Ends tasks whose owner is gone, and frees their slots if none of their processes is left. True: the ledger changed.
  bool free_stale();

 private:
  struct Impl;
  explicit Ledger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::scheduler
