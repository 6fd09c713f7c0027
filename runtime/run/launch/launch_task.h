// A launch as a task of the ledger: queued, then holding its slots, until its ranks are gone. Belongs to the launcher,
// one thread. Once it holds its slots a ledger that cannot be written (a full disk) does not end the training: a
// warning, once.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/scheduler/ledger.h"
#include "launch/launch_signals.h"

namespace dtrain::run {

class LaunchTask {
 public:
  // Submits it.
  LaunchTask(const std::filesystem::path& state_folder, const scheduler::TaskRequest& request, const Clock& clock);
  // A task that nobody has ended by then has failed.
  ~LaunchTask();
  LaunchTask(const LaunchTask&) = delete;
  LaunchTask& operator=(const LaunchTask&) = delete;

  scheduler::TaskId id() const { return id_; }

  // Until it is its turn and its slots are free, in the order of the ranks. `say` is called whenever what it waits for
  // changes. Empty: it was cancelled, `cancelled()` says by what.
  std::optional<scheduler::Claim> wait_for_slots(LaunchSignals& signals,
                                                 const std::function<void(const scheduler::Waiting&)>& say);
  const std::string& cancelled() const { return cancelled_; }

  // A process of this host that uses the slots ("rank 0", "mpirun"), right after its start.
  void add_process(const std::string& name, pid_t pid);
  void enter(scheduler::TaskState state, const std::string& reason = {});
  // How often it was asked to stop from outside: 1 as by Ctrl-C, more at once. Looks a few times a second, however
  // often it is called.
  int kills();
  // The ranks are gone. `cause`: of what was not completed.
  void end(int exit_code, const std::string& cause);

 private:
  void guarded(const std::function<void()>& change);

  const Clock& clock_;
  scheduler::Ledger ledger_;
  scheduler::TaskId id_;
  std::string cancelled_;
  int kills_ = 0;
  Nanoseconds looked_at_{0};
  bool ended_ = false;
  bool warned_ = false;
};

}  // namespace dtrain::run
