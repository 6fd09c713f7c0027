// What mpirun is started with for a plan: its arguments, its hostfile, the variables it passes on. Pure functions.
//
// Open MPI 4.1: a hostfile with a line a rank and `--map-by seq` puts rank n on the host of line n (mpirun(1)).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "environment.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

std::string hostfile(const LaunchPlan& plan);

// The placement as DTRAIN_SLOTS says it: "0/2,1/2,0/4", slot and slots of the agent of each rank.
std::string slots_variable(const LaunchPlan& plan);

// What ranks get beside mpirun's own variables. `launcher`: how they reach it.
Variables job_variables(const LaunchPlan& plan, const LauncherContact& launcher);
// The names of all variables that ranks elsewhere shall have as they are here: those of job_variables(), and the user's
// own for OpenMP, math libraries, NCCL, torch and dtrain.
std::vector<std::string> passed_on(const Variables& job, const Variables& variables);

struct MpiCommand {
  std::vector<std::string> options;  // of the launcher, from the cluster file
  std::string network;               // interface or network; "auto": Open MPI chooses
  std::filesystem::path hostfile;
  int ranks = 0;
  bool as_root = false;
  std::vector<std::string> passed;   // names of variables
  std::vector<std::string> program;  // of a rank
};
std::vector<std::string> mpirun_arguments(const MpiCommand& command);

// What mpirun starts its daemons with on other hosts: "ssh", or what options and variables say.
std::vector<std::string> remote_shell(const std::vector<std::string>& options, const Variables& variables);

}  // namespace dtrain::run
