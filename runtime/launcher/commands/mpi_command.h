// mpirun's arguments, its hostfile and the variables it passes on, for a plan. Pure functions.
//
// Open MPI 4.1: a hostfile with a line for each rank and `--map-by seq` puts rank n on the host of line n (mpirun(1)).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/rank/environment.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

std::string hostfile(const LaunchPlan& plan);

// Returns the placement as the value of DTRAIN_SLOTS: "0/2,1/2,0/4x2t2", a SlotOfRank for each rank.
std::string slots_variable(const LaunchPlan& plan);

// Returns the variables of the ranks besides mpirun's own. `launcher`: the contact by which the ranks reach it.
Variables job_variables(const LaunchPlan& plan, const LauncherContact& launcher);
// Returns the names of all variables that ranks on other hosts get from here: those of job_variables(), and the user's
// own for OpenMP, math libraries, NCCL, CUDA, torch and dtrain, except for those that name GPUs of this host.
std::vector<std::string> passed_on(const Variables& job, const Variables& variables);

struct MpiCommand {
  std::vector<std::string> options;  // of the launcher, from the cluster file
  std::string network;               // interface or network; "auto": Open MPI chooses
  std::filesystem::path hostfile;
  int ranks = 0;
  bool as_root = false;
  std::vector<std::string> passed;   // names of variables
  std::vector<std::string> program;  // the command line of a rank
};
std::vector<std::string> mpirun_arguments(const MpiCommand& command);

// Returns the remote shell with which mpirun starts its daemons: "ssh", or the shell that options and variables set.
std::vector<std::string> remote_shell(const std::vector<std::string>& options, const Variables& variables);

}  // namespace dtrain::run
