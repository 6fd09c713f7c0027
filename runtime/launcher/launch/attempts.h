// The attempts at a run, each from the start of its ranks until all of its processes have ended: the objects of an
// attempt, the watch over its ranks, and its outcome. The functions block; one thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/launcher_link.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/screen.h"
#include "dtrain/rank/stop_requests.h"
#include "dtrain/rank/trainer_status.h"
#include "launch/launch_task.h"
#include "launch/resizing.h"
#include "launch/standby.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

class JobMemory;
class Recoveries;

// A rank that ended by itself.
struct RankFault {
  int rank = -1;
  std::string cause;
};

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
  bool lost_host = false;       // a host does not answer, or all processes there are gone
  std::vector<int> followers;   // ranks that stopped because of this failure
  std::vector<RankFault> also;  // ranks that failed by themselves, too, before all had ended
};

// Returns the failure that a rank has reported. `who`: "rank 1 on nodeb"; `rank`: -1 if it is not known.
Failure reported_failure(const std::string& who, int rank, const rank::ErrorMessage& error);

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

// Returns the outcome of a launch that was cancelled while its task was queued.
Outcome outcome_of_cancelled(const LaunchTask& task, const rank::ResumePoint& resume);

// Returns the last lines of the rank's log if it is on this host, without lines that `cause` has.
std::vector<std::string> log_lines(const rank::RunFolder& folder, int rank, const std::string& cause);

// The launcher's lines of events.jsonl while ranks run. A full disk does not end the launch: the first event that
// cannot be written becomes a warning on the screen.
class LaunchEvents {
 public:
  LaunchEvents(rank::EventLog& file, rank::Screen& screen) : file_(file), screen_(screen) {}
  void write(const std::string& event, const Json& fields = {});

 private:
  rank::EventLog& file_;
  rank::Screen& screen_;
  bool warned_ = false;
};

// The objects that all attempts of a launch use.
struct RunningLaunch {
  const rank::RunFolder& folder;
  LaunchEvents& events;
  rank::Screen& screen;
  rank::TrainerStatus& status;
  const Clock& clock;
  const rank::Variables& variables;
  rank::LaunchSignals& signals;
  LaunchTask& task;  // records every process that is started
  Resizing& resizing;
};

// One attempt at a placed launch.
struct Attempt : RunningLaunch {
  const PlacedLaunch& placed;
  rank::ResumePoint resume;             // the checkpoint from which the ranks go on
  std::filesystem::path memory_folder;  // for states in memory; empty: none are kept in the launcher's folder
  JobMemory* job_memory;                // of ranks that mpirun or srun starts; null: none are kept
  Recoveries* recoveries;
  Standby& standby;

  // Shows the progress.
  void take(const rank::Progress& progress) const;
};

// Starts the ranks with the launcher of the plan, at first where `resume` says. Starts them again from the newest
// checkpoint after a failure that may pass, a signal that dtrain did not send or a lost host; and after an order to
// yield (LaunchTask::yields(), resize()), which does not count as a restart, where `place_again` says. Empty: the
// launch was cancelled while it waited. If the first attempt with another number of slots fails, the number before
// returns. `restarts`: how many of max_restarts are used already; a checkpoint that is further than where the attempt
// began sets it to 0. The same fault at the same batch three times ends the run, too. Logs and records of attempts
// before the last are in attempt-N/ of the run's folder.
Outcome run_attempts(const RunningLaunch& running, PlacedLaunch placed, rank::ResumePoint resume, int restarts,
                     const std::function<std::optional<PlacedLaunch>()>& place_again);

// Makes one attempt with ranks on this machine, one process for each slot, watched by this process.
Outcome run_local(const Attempt& attempt);
// Makes one attempt on every host of the plan, with Open MPI's mpirun.
Outcome run_mpi(const Attempt& attempt);
// Makes one attempt on the nodes of the Slurm allocation that this process is in, with srun.
Outcome run_slurm(const Attempt& attempt);
// Removes folders on the other hosts of such a run, as far as they answer within seconds.
void remove_on_hosts(const PlacedLaunch& placed, const rank::Variables& variables,
                     const std::vector<std::string>& folders);

// The times after which a process that should end by itself gets SIGTERM, and then SIGKILL.
struct Patience {
  std::chrono::milliseconds before_term;
  std::chrono::milliseconds before_kill;
};

// A failing rank informs the others through the control plane, or ends mpirun's job with MPI_Abort, and they stop by
// themselves. A rank that has not joined is not reached that way. For a host that is silent, mpirun and srun would
// wait.
inline constexpr Patience kPatienceWithRank{std::chrono::milliseconds(500), std::chrono::seconds(5)};
inline constexpr Patience kPatienceWithStartingRank{std::chrono::milliseconds(100), std::chrono::seconds(5)};
inline constexpr Patience kPatienceWithSavingRank{std::chrono::seconds(10), std::chrono::seconds(10)};
inline constexpr Patience kPatienceWithJob{std::chrono::seconds(8), std::chrono::seconds(12)};
inline constexpr Patience kPatienceWithSilentHost{std::chrono::milliseconds(1500), std::chrono::milliseconds(2500)};
inline constexpr Patience kPatienceAfterFinish{std::chrono::seconds(30), std::chrono::seconds(38)};  // of a job

// Ends a rank that hangs, or the mpirun or srun of ranks that hang: every launcher's ranks are ended here. If that
// launcher is gone, or does not reach them, they end by their own timers (ExitDeadlines).
class HangingProcess {
 public:
  // True once the process was asked, or forced, to end.
  bool has_begun() const { return terminated_ || killed_; }
  // Called again and again from when the process should end, `since` ago, until it has ended. A process that is stopped
  // (SIGSTOP) handles neither messages nor signals, so it is killed at once.
  void end(const Process& process, Nanoseconds since, const Patience& patience);

 private:
  bool terminated_ = false;
  bool killed_ = false;
};

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

}  // namespace dtrain::launcher
