// The attempts at a run, each from the start of its ranks until all of its processes have ended: the objects of an
// attempt, the watch over its ranks, and its outcome. The functions block; one thread.
#pragma once

#include <poll.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/screen.h"
#include "dtrain/rank/stop_requests.h"
#include "launch/launch_task.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// The first cause of a run's failure, in a text that is complete without the logs.
struct Failure {
  int rank = -1;  // -1: not a rank
  std::string cause;
  std::string remedy;
  std::string status;              // "exit status 1", "killed by signal 9 (SIGKILL)"; empty: it had not ended
  std::vector<std::string> lines;  // the last lines of its log, or of the output of `said_by`
  std::string said_by;             // "mpirun"; empty: `lines` are from the rank's log
  // Another attempt may succeed (max_restarts): dtrain did not send the signal, a host was lost, or a rank was waited
  // for in vain. False if the experiment, its data or its program caused the failure.
  bool may_pass = false;
  std::vector<int> followers;  // ranks that stopped because of this failure
};

struct Outcome {
  ExitCode exit_code = ExitCode::kDone;
  std::optional<Failure> failure;
  bool reported = false;  // the launcher in a Slurm job has written the last event and printed the outcome
  Interrupt interrupt;    // the interrupt that stopped the attempt; empty: none
};

// Returns the line that the screen shows when an interrupt stops the ranks after their current step.
std::string stopping_line(const Interrupt& interrupt);

// Returns the exit code of a run that was asked to stop, from the highest exit code of its ranks.
ExitCode exit_code_of_stop(const Interrupt& interrupt, ExitCode of_ranks);

// Returns the last lines of the rank's log if it is on this host, without lines that `cause` has.
std::vector<std::string> log_lines(const RunFolder& folder, int rank, const std::string& cause);

// The launcher's lines of events.jsonl while ranks run. A full disk does not end the launch: the first event that
// cannot be written becomes a warning on the screen.
class LaunchEvents {
 public:
  LaunchEvents(EventLog& file, Screen& screen) : file_(file), screen_(screen) {}
  void write(const std::string& event, const Json& fields = {});

 private:
  EventLog& file_;
  Screen& screen_;
  bool warned_ = false;
};

// The objects with which an attempt works.
struct Attempt {
  const LaunchPlan& plan;
  const RunFolder& folder;
  LaunchEvents& events;
  Screen& screen;
  const Clock& clock;
  const Variables& variables;
  LaunchSignals& signals;
  LaunchTask& task;    // records every process that is started
  ResumePoint resume;  // the checkpoint from which the ranks go on
};

// Starts the ranks with the plan's launcher, at first where `attempt.resume` says. Starts them again from the newest
// checkpoint after a failure that may pass, a signal that dtrain did not send or a lost host; and after an order to
// yield (LaunchTask::yields()), which does not count as a restart, once `wait_for_slots` has returned true. False: the
// launch was cancelled while it waited. `restarts`: how many of max_restarts are used already; a checkpoint that
// is further than where the attempt began sets it to 0. Logs and records of attempts before the last are in attempt-N/
// of the run's folder.
Outcome run_attempts(Attempt attempt, int restarts, const std::function<bool()>& wait_for_slots);

// Makes one attempt with ranks on this machine, one process for each slot, watched by this process.
Outcome run_local(const Attempt& attempt);
// Makes one attempt on every host of the plan, with Open MPI's mpirun.
Outcome run_mpi(const Attempt& attempt);
// Makes one attempt on the nodes of the Slurm allocation that this process is in, with srun.
Outcome run_slurm(const Attempt& attempt);

// The ranks of one attempt, as watch_ranks() sees them. They are started and ended in two ways: as children of this
// process (local_ranks.h), or by mpirun or srun (job_ranks.h).
class WatchedRanks {
 public:
  virtual ~WatchedRanks() = default;

  // Adds the file descriptors that become readable when take() has something to read.
  virtual void add_descriptors(std::vector<pollfd>& descriptors) const = 0;
  // Reads what has arrived: messages, output, ends of processes. `last`: every rank has ended.
  virtual void take(bool last) = 0;
  // Decides from these whether the run has failed.
  virtual void judge() = 0;
  // The first interrupt stops the ranks after their current step, or kills them if they cannot be asked yet; later ones
  // kill them. An interrupt that repeats an order to yield changes only the outcome. Prints the effect.
  virtual void interrupt(const Interrupt& interrupt) = 0;
  // Ends ranks that should have ended by themselves by now.
  virtual void end_what_hangs() = 0;

  virtual bool all_joined() const = 0;  // every rank has joined the run at some time
  virtual bool has_failed() const = 0;
  virtual bool all_ended() const = 0;
};

// Watches the ranks of one attempt until the last has ended: passes interrupts on, updates the task's state, and ends
// ranks that hang.
void watch_ranks(const Attempt& attempt, WatchedRanks& ranks);

// `dtrain launch` and `dtrain run` on one of several hosts that Kubernetes, or a user, starts it on (PET_*): this
// host's ranks, which join those of the other hosts. There is no launcher for all hosts. Rank 0 makes the run's folder.

// Starts this host's ranks and waits until they have ended. SIGTERM and SIGINT are passed on. When one fails, the
// others of this host get some time to stop by themselves, and are then ended. Returns the exit code, as launch() does.
// ConfigError before any rank starts.
ExitCode launch_node(const LaunchRequest& request, const NodeEnvironment& node, const Variables& variables);

// `launcher: slurm` outside an allocation: the launch becomes a job that sbatch submits, in which `dtrain launch`
// starts the ranks with srun. Plain functions; one thread.

// Returns the script that would be submitted; empty: this launch submits none. `run_dir` is empty while it is not
// known. ConfigError as batch_script().
std::string batch_script_of(const LaunchPlan& plan, const Variables& variables, const std::filesystem::path& run_dir);

// Submits the job, prints its output until it has ended, and passes interrupts on to it. The launch in the job writes
// the run's folder and reports the outcome (Outcome::reported).
Outcome submit_and_follow(const Attempt& attempt);

// True if this process is the Slurm job that a launch has submitted for the run in this folder.
bool is_job_of(const std::filesystem::path& run_dir, const Variables& variables);

// Called in that job after its run was stopped with a checkpoint: queues the job again, unless the user has stopped it
// or Slurm ends it for another reason. Slurm then ends this process. Returns a line that says what was done; empty:
// nothing. SystemError.
std::string requeue_job(const RunFolder& folder, const Variables& variables);

}  // namespace dtrain::run
