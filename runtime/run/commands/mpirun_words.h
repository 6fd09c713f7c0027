// What mpirun says when a job fails, read for what dtrain itself cannot see: which signal or exit code ended a rank,
// which host's daemon is gone. Pure functions.
//
// The texts are those of Open MPI 4.1 (help-orterun.txt, help-errmgr-base.txt).
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
  std::optional<EndOfRank> first;  // the rank that ended first, not as it should
  std::string lost_host;           // whose daemon is gone; empty: none
};

JobWords read_mpirun_words(const std::string& text);

// srun's: "srun: error: node1: task 3: Killed" or "... Exited with exit code 7".
// It tells of every task that did not end well, those that stopped because of another too: the one to hear of is
// `rank`, where it is among them; else the first.
JobWords read_srun_words(const std::string& text, int rank = -1);

}  // namespace dtrain::run
