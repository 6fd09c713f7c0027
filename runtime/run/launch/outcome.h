// How a run, or one attempt at it, ended. Plain values; log_lines() looks into a file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// Why a run failed: the first cause, in words that are complete without the logs.
struct Failure {
  int rank = -1;  // -1: not a rank
  std::string cause;
  std::string remedy;
  std::string status;              // "exit status 1", "killed by signal 9 (SIGKILL)"; empty: it had not ended
  std::vector<std::string> lines;  // the last ones of its log, or of what `said_by` has said
  std::string said_by;             // "mpirun"; empty: the lines are the log's
  // A signal that dtrain did not send, or a lost host: the same may go well the next time (max_restarts). Never what
  // the experiment, its data or its program are to blame for.
  bool may_pass = false;
  std::vector<int> followers;  // ranks that said they stop because of it
};

struct Outcome {
  int exit_code = 0;
  std::optional<Failure> failure;
  bool reported = false;       // another launcher has written the last event and printed how it ended
  std::string interrupted_by;  // "SIGINT", "dtrain task kill"; empty: not interrupted
};

// The last lines of the rank's log, where it is on this host, without those that repeat the first line of `cause`.
std::vector<std::string> log_lines(const RunFolder& folder, int rank, const std::string& cause);

}  // namespace dtrain::run
