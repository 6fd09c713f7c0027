// Which tasks hold slots, which ones wait, and how earlier ones ended: one SQLite file a user and launching host,
// shared by all their launches. There is no server: every process that reads it frees what dead processes have left.
//
// A task belongs to the process that submitted it, its owner, known by boot id, PID namespace, pid and start time; it
// keeps a lease, renewed by orders(), for launches that cannot see its process. Slots are claimed in one transaction
// and are free again when the owner calls end(), or when the owner and every process it has recorded are gone. An
// object belongs to one thread; processes that fork open their own afterwards.
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

// What others want from the owner of a task.
struct Orders {
  int kills = 0;      // 1: stop as after Ctrl-C; more: at once
  bool lost = false;  // the task was given up for dead meanwhile (its lease ran out): its slots are no longer its own
  std::string yield;  // why it is to save and give up its slots for a while, "preempted by task 7 (mnist)"; empty: not
};

enum class KillResult { kAsked, kEnded, kHadEnded };

enum class Which { kAll, kNotEnded };

class Ledger {
 public:
  // Opens folder/ledger.db; makes both where missing. ConfigError: the folder lies on a network file system, or the
  // file comes from another version of dtrain. SystemError: it cannot be written.
  static Ledger open(const std::filesystem::path& folder, const Clock& clock);
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;
  ~Ledger();

  // --- by the owner of a task ---
  // Queued from now on; this process owns it.
  TaskId submit(const TaskRequest& request);
  // Its slots, from the moment on in which it is its turn and they are free: it is then starting. Every call renews the
  // lease. Empty: not yet, and `waiting` is the reason. Where preemption is allowed, asks the tasks that have to give
  // up their slots for it. Error: the task is no longer queued.
  std::optional<Claim> try_claim(TaskId id, Waiting* waiting = nullptr);
  // Another of the states that have not ended; the same one again changes nothing.
  void set_state(TaskId id, TaskState state, const std::string& reason = {});
  // A process that uses the task's slots ("rank 0", "mpirun"), to be called right after its start.
  void add_process(TaskId id, const std::string& name, pid_t pid);
  // What is wanted of the owner. Cheap enough for a few times a second; renews the lease when that is due.
  Orders orders(TaskId id);
  // Frees the slots and queues the task again, in its old place: to be called when no process of the task is left that
  // uses its slots.
  void requeue(TaskId id, const std::string& reason);
  // Frees the slots: to be called when no process of the task is left.
  void end(TaskId id, TaskState state, const std::string& reason, int exit_code);

  // --- by anyone ---
  // In the order of their ids; of queued ones with why they wait. All of them free what dead processes have left first.
  std::vector<Task> list(Which which = Which::kAll);
  // As list(), one after the other: there may be many. `see` must not use this ledger.
  void visit(Which which, const std::function<void(Task&&)>& see);
  std::optional<Task> find(TaskId id);
  std::vector<StateChange> history(TaskId id);
  // ConfigError: there is no such task. Asks the owner to stop the task; asked again, at once. Where the owner is gone,
  // kills what it has left running.
  KillResult request_kill(TaskId id);
  // ConfigError: there is no such task, or it cannot save and go on. Asks the owner to save and to give up its slots
  // until the task is activated; a queued task is passed over until then. False: nothing has changed, or it has ended.
  bool set_paused(TaskId id, bool paused);
  // Ends tasks whose owner is gone, and frees their slots where no process of theirs is left. True: something changed.
  bool free_stale();

 private:
  struct Impl;
  explicit Ledger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::scheduler
