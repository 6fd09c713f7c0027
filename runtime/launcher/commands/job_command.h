// The commands that start the ranks of a plan as a job: of mpirun, and of srun and sbatch.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/rank/environment.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

// mpirun's arguments, its hostfile and the variables it passes on, for a plan. Pure functions.
//
// Open MPI 4.1: a hostfile with a line for each rank and `--map-by seq` puts rank n on the host of line n (mpirun(1)).

std::string hostfile(const PlacedLaunch& placed);

// Returns the placement as the value of DTRAIN_SLOTS: "0/2,1/2,0/4x2t2", a SlotOfRank for each rank.
std::string slots_variable(const PlacedLaunch& placed);

// Returns the variables of the ranks besides mpirun's own. `launcher`: the contact by which the ranks reach it.
rank::Variables job_variables(const PlacedLaunch& placed, const rank::LauncherContact& launcher);
// Returns the names of all variables that ranks on other hosts get from here: those of job_variables(), and the user's
// own for OpenMP, math libraries, NCCL, CUDA, torch and dtrain, except for those that name GPUs of this host.
std::vector<std::string> passed_on(const rank::Variables& job, const rank::Variables& variables);

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
std::vector<std::string> remote_shell(const std::vector<std::string>& options, const rank::Variables& variables);

// The arguments of srun and sbatch for a plan. Pure functions.

// Returns the Slurm job to which this process belongs; empty: none.
std::string slurm_job(const rank::Variables& variables);
// True if Slurm must still be asked for slots, because there is no allocation yet.
bool needs_allocation(const LaunchPlan& plan, const rank::Variables& variables);

// srun starts one task for each rank. On several nodes SLURM_HOSTFILE names slurm_hostfile() (a line for each rank).
std::vector<std::string> srun_arguments(const PlacedLaunch& placed, const std::vector<std::string>& program);
std::string slurm_hostfile(const PlacedLaunch& placed);

// The contents of the script of a job that makes this launch in an allocation of its own.
struct SbatchJob {
  std::filesystem::path dtrain;      // this program
  std::filesystem::path experiment;  // absolute
  std::filesystem::path contents;    // absolute; read in the place of the experiment; empty: the experiment itself
  std::filesystem::path run_dir;     // absolute; empty: not known yet (a dry run)
  std::filesystem::path cluster;     // absolute; empty: none was given
  std::filesystem::path folder;      // its working folder
  std::string token;                 // proves to the launch in the job that the run's folder is its own
};
// ConfigError if an option, the name or a path has a line break: sbatch reads options line by line, and the text after
// a line break would be a command of the script.
std::string batch_script(const PlacedLaunch& placed, const SbatchJob& job);
std::filesystem::path batch_output(const std::filesystem::path& run_dir);

}  // namespace dtrain::launcher
