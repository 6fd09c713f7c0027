// A launch as a task of the ledger: queued, then holding its slots, until its ranks are gone. Used by the launcher on
// one thread. Once the task holds its slots, an error of the ledger (a full disk) does not end the training: the first
// one becomes a warning.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/scheduler/ledger.h"
#include "launch/outcome.h"
#include "stop/launch_signals.h"

namespace dtrain::run {

class LaunchTask {
 public:
  // Submits the task.
  LaunchTask(const std::filesystem::path& state_folder, const scheduler::TaskRequest& request, const Clock& clock);
  // Ends the task as failed unless end() was called.
  ~LaunchTask();
  LaunchTask(const LaunchTask&) = delete;
  LaunchTask& operator=(const LaunchTask&) = delete;

  scheduler::TaskId id() const { return id_; }

  // Waits until it is the task's turn and its slots are free, and returns them in the order of the ranks. Calls `say`
  // whenever the reason for waiting changes. Empty: the launch was cancelled, see cancelled().
  std::optional<scheduler::Claim> wait_for_slots(LaunchSignals& signals,
                                                 const std::function<void(const scheduler::Waiting&)>& say);
  const Interrupt& cancelled() const { return cancelled_; }

  // Records a process of this host that uses the slots ("rank 0", "mpirun"). Called right after the process starts.
  void add_process(const std::string& name, pid_t pid);
  void enter(scheduler::TaskState state, const std::string& reason = {});
  // How often `dtrain task kill` has asked for a stop: once means as by Ctrl-C, more often means at once. Reads the
  // ledger a few times a second at most.
  int kills();
  // Why the task is to save, to give up its slots, and to wait in the queue again ("dtrain task pause"); empty: it is
  // not. As kills() reads it.
  const std::string& yields() const { return yield_; }
  // Frees the slots and queues the task again. Its ranks are gone. SystemError, Error: wait_for_slots() would fail too.
  void requeue(const std::string& reason);
  // Ends the task once its ranks are gone. `cause`: why it did not complete; empty if it did.
  void end(int exit_code, const std::string& cause);

 private:
  void guarded(const std::function<void()>& change);

  const Clock& clock_;
  scheduler::Ledger ledger_;
  scheduler::TaskId id_;
  Interrupt cancelled_;
  std::string yield_;
  int kills_ = 0;
  Nanoseconds looked_at_{0};
  bool ended_ = false;
  bool warned_ = false;
};

}  // namespace dtrain::run
