// A job that mpirun or srun carries out for `dtrain launch`. Plain values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/subprocess.h"
#include "environment.h"
#include "link/launcher_link.h"
#include "link/plane_link.h"

namespace dtrain::run {

struct Job {
  std::string name;  // "mpirun"; what it prints goes to logs/mpirun.log
  std::vector<std::string> command;
  Variables variables;             // beside this process's own
  std::vector<std::string> unset;  // of this process's own, that it does not get
};

// How it ended, as far as can be seen from here.
struct JobEnd {
  ExitStatus status;
  std::string errors;                 // what it wrote to standard error, the last of it
  std::optional<ErrorMessage> error;  // what the ranks reported, or which rank left without a report
  int joined = 0;                     // ranks that came up
  bool finished = false;              // all did all they were asked to
  int exit_code = 0;                  // what they report then
  int interrupts = 0;
  std::string interrupted_by;               // the first of them; empty: none
  std::map<std::string, HostReport> hosts;  // by agent
};

}  // namespace dtrain::run
