// A launch as a task of the ledger: its request, its wait in the queue, with --detach in the background, and its slots
// until its ranks are gone. One thread.
#pragma once

#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/stop_requests.h"
#include "dtrain/scheduler/ledger.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

class Resizing;

// A request to stop a launch: a signal to it, a `dtrain task kill`, or an order to give the slots to another task for a
// while.
struct Interrupt {
  std::string why;       // "SIGINT", "dtrain task kill", "preempted by task 7 (mnist)"; empty: nothing asks
  int signal = SIGTERM;  // the ranks act as after this one: SIGINT, a person ends the run; SIGTERM, it goes on later
  int count = 1;         // its number, from 1
  bool yields = false;   // the launch waits in the queue again and goes on
  bool repeats = false;  // the ranks are stopping already, because of an order to yield

  bool exists() const { return !why.empty(); }
};

// The task of a launch. Once it holds its slots, an error of the ledger (a full disk) does not end the training: the
// first one becomes a warning.
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
  // whenever the reason for waiting changes, and `resize` when another number of slots is ordered, which answers by
  // requeue() or refuse_slots(). Empty: the launch was cancelled, see cancelled().
  std::optional<scheduler::Claim> wait_for_slots(rank::LaunchSignals& signals,
                                                 const std::function<void(const scheduler::Waiting&)>& say,
                                                 const std::function<void(const scheduler::Resize&)>& resize);
  const Interrupt& cancelled() const { return cancelled_; }

  // Records a process of this host that uses the slots ("rank 0", "mpirun"). Called right after the process starts.
  void add_process(const std::string& name, pid_t pid);
  void enter(scheduler::TaskState state, const std::string& reason = {});
  // Returns how often `dtrain task kill` has asked for a stop: after one request the ranks stop as by Ctrl-C, after
  // more at once. Reads the ledger a few times a second at most.
  int kills();
  // Returns the reason of an order to save, to free the slots, and to wait in the queue again ("dtrain task pause");
  // empty: there is none. Only kills() updates it.
  const std::string& yields() const { return yield_; }
  // Returns an order to go on with another number of slots, likewise.
  const std::optional<scheduler::Resize>& resize() const { return resize_; }
  // Refuses an order for this number of slots. No cause: the task has that number.
  void refuse_slots(int slots, const std::string& cause);
  // Frees the slots and queues the task again, with another request if there is one. Its ranks are gone. SystemError,
  // Error: wait_for_slots() would fail too.
  void requeue(const std::string& reason, const scheduler::TaskRequest* resized = nullptr);
  // Ends the task once its ranks are gone. `cause`: why it did not complete; empty if it did.
  void end(ExitCode exit_code, const std::string& cause);

 private:
  void guarded(const std::function<void()>& change);

  const Clock& clock_;
  scheduler::Ledger ledger_;
  scheduler::TaskId id_;
  Interrupt cancelled_;
  std::string yield_;
  std::optional<scheduler::Resize> resize_;
  int kills_ = 0;
  Nanoseconds looked_at_{0};
  bool ended_ = false;
  bool warned_ = false;
};

// `dtrain launch --detach`: the launch continues in a process of its own session, which no terminal ends, with its
// output in a file. The first process waits until the task is in the ledger. Construct before other threads exist.
class Detached {
 public:
  // Returns in both processes, as fork() does. SystemError.
  explicit Detached(const std::filesystem::path& log);

  bool is_launcher() const { return child_ == 0; }
  // Sends `word` to the first process. Called once, by the process that continues.
  void tell(const std::string& word);
  // In the first process: waits for that text. Error with the end of the log if the launcher ended without sending it.
  std::string hear();

 private:
  std::filesystem::path log_;
  pid_t child_ = -1;
  UniqueFd word_;
};

// Returns the request of a launch to the ledger.
scheduler::TaskRequest task_request(const LaunchPlan& plan, const std::filesystem::path& run_dir);

// Waits until the ranks of the present plan have their slots, and returns these in the order of the ranks. Prints the
// reason for the wait, writes it as an event, and passes it to the process in the foreground (`detached`; null without
// --detach). Empty: the launch was cancelled, which is printed too.
std::optional<scheduler::Claim> wait_in_queue(Resizing& resizing, const std::filesystem::path& run_dir,
                                              LaunchTask& task, rank::LaunchSignals& signals, rank::EventLog& events,
                                              Detached* detached);

}  // namespace dtrain::launcher
