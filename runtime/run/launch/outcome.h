// What asks the ranks of a run to stop, and how a run, or one attempt at it, ended. Plain values; log_lines() reads a
// file.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// A signal to the launcher, a `dtrain task kill`, or an order to give the slots to another task for a while.
struct Interrupt {
  std::string why;       // "SIGINT", "dtrain task kill", "preempted by task 7 (mnist)"; empty: nothing asks
  int signal = SIGTERM;  // the ranks act as after this one: SIGINT, a person ends the run; SIGTERM, it goes on later
  int count = 1;         // its number, from 1
  bool yields = false;   // the launch waits in the queue again and goes on
  bool repeats = false;  // the ranks are stopping already, because of an order to yield

  bool exists() const { return !why.empty(); }
};

// What the screen shows when an interrupt stops the ranks after their current step.
std::string stopping_line(const Interrupt& interrupt);

// The exit code of a run that was asked to stop, from the highest exit code of its ranks.
int exit_code_of_stop(const Interrupt& interrupt, int of_ranks);

// Why a run failed: the first cause, in a text that is complete without the logs.
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
  int exit_code = 0;
  std::optional<Failure> failure;
  bool reported = false;  // the launcher in a Slurm job has written the last event and printed the outcome
  Interrupt interrupt;    // what stopped it; nothing if it was not interrupted
};

// The last lines of the rank's log if it is on this host, without lines that repeat the first line of `cause`.
std::vector<std::string> log_lines(const RunFolder& folder, int rank, const std::string& cause);

}  // namespace dtrain::run
