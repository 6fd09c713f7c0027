// What dtrain itself cannot see of a failed job, read from the messages of mpirun and srun: which signal or exit code
// ended a rank, and which host's daemon is gone. Pure functions.
//
// mpirun's texts are those of Open MPI 4.1 (help-orterun.txt, help-errmgr-base.txt).
#pragma once

#include <optional>
#include <string>

namespace dtrain::run {

struct EndOfRank {
  int rank = -1;
  int signal = 0;  // 0: it ended with `code`
  int code = 0;
};

struct JobWords {
  std::optional<EndOfRank> first;  // the rank that ended abnormally first
  std::string lost_host;           // the host whose daemon is gone; empty: none
};

JobWords read_mpirun_words(const std::string& text);

// srun's: "srun: error: node1: task 3: Killed" or "... Exited with exit code 7".
// srun reports every task that failed, including those that stopped because of another. The result has `rank` if it is
// among them, else the first.
JobWords read_srun_words(const std::string& text, int rank = -1);

}  // namespace dtrain::run
