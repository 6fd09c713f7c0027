// Watches a job that mpirun or srun carries out for `dtrain launch`, from its start until it has ended: shows what its
// ranks print and how far they are, passes interrupts on, and ends it where it does not end by itself after a failure.
// One thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/subprocess.h"
#include "launch/run_attempt.h"
#include "link/launcher_link.h"
#include "link/rank_plane.h"

namespace dtrain::run {

struct Job {
  std::string name;  // "mpirun"; its words go to logs/mpirun.log
  std::vector<std::string> command;
  Variables variables;             // beside this process's own
  std::vector<std::string> unset;  // of this process's own, that it does not get
};

// How it ended, as far as can be seen from here.
struct JobEnd {
  ExitStatus status;
  std::string errors;                 // what it wrote to standard error, the last of it
  std::optional<ErrorMessage> error;  // what the ranks said, or who left without a word
  int joined = 0;                     // ranks that came up
  bool finished = false;              // all did all they were asked to
  int exit_code = 0;                  // what they say then
  int interrupts = 0;
  std::string interrupted_by;               // the first of them; empty: nobody
  std::map<std::string, HostReport> hosts;  // by agent
};

// SystemError when it cannot be started.
JobEnd watch_job(const Attempt& attempt, RankPlane& plane, const Job& job);

}  // namespace dtrain::run
