// A job that mpirun or srun carries out for `dtrain launch`. Plain values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/subprocess.h"
#include "environment.h"
#include "launch/outcome.h"
#include "link/launcher_link.h"
#include "link/plane_link.h"

namespace dtrain::run {

struct Job {
  std::string name;  // "mpirun"; its standard error goes to logs/mpirun.log
  std::vector<std::string> command;
  Variables variables;             // besides those of this process
  std::vector<std::string> unset;  // variables of this process that the job does not get
};

// How the job ended, as far as the launcher can see.
struct JobEnd {
  ExitStatus status;
  std::string errors;                 // the end of its standard error
  std::optional<ErrorMessage> error;  // what a rank reported, or which rank left without a report
  int joined = 0;                     // ranks that joined
  bool finished = false;              // every rank finished, or stopped as requested
  int exit_code = 0;                  // of the ranks, if `finished`
  int interrupts = 0;
  Interrupt interrupt;                      // the first one; nothing: none
  std::map<std::string, HostReport> hosts;  // by agent
};

}  // namespace dtrain::run
