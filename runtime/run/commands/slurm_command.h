// What srun and sbatch are started with for a plan. Pure functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "environment.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// The job that this process is part of; empty: none.
std::string slurm_job(const Variables& variables);
// Slurm is asked for the slots: there is no allocation yet.
bool needs_allocation(const LaunchPlan& plan, const Variables& variables);

// One task a rank; on several nodes those of `hostfile` (a line a rank), which SLURM_HOSTFILE must name.
std::vector<std::string> srun_arguments(const LaunchPlan& plan, const std::vector<std::string>& program);
std::string slurm_hostfile(const LaunchPlan& plan);

// The script of a job that makes this launch, in an allocation of its own.
struct BatchJob {
  std::filesystem::path dtrain;      // this program
  std::filesystem::path experiment;  // absolute
  std::filesystem::path run_dir;     // absolute; empty: not known yet (a dry run)
  std::filesystem::path cluster;     // the cluster file as it was given; empty: none
  std::filesystem::path folder;      // where it runs
  std::string token;                 // what tells the launch in the job that the run's folder is its own
};
// ConfigError where an option, the name or a path has a line break: sbatch reads options line by line, and whatever
// comes after one would be a command of the script.
std::string batch_script(const LaunchPlan& plan, const BatchJob& job);
std::filesystem::path batch_output(const std::filesystem::path& run_dir);

}  // namespace dtrain::run
