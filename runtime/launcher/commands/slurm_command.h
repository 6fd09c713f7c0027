// The arguments of srun and sbatch for a plan. Pure functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/rank/environment.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// Returns the Slurm job to which this process belongs; empty: none.
std::string slurm_job(const Variables& variables);
// True if Slurm must still be asked for slots, because there is no allocation yet.
bool needs_allocation(const LaunchPlan& plan, const Variables& variables);

// srun starts one task for each rank. On several nodes SLURM_HOSTFILE names slurm_hostfile() (a line for each rank).
std::vector<std::string> srun_arguments(const LaunchPlan& plan, const std::vector<std::string>& program);
std::string slurm_hostfile(const LaunchPlan& plan);

// The contents of the script of a job that makes this launch in an allocation of its own.
struct BatchJob {
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
std::string batch_script(const LaunchPlan& plan, const BatchJob& job);
std::filesystem::path batch_output(const std::filesystem::path& run_dir);

}  // namespace dtrain::run
