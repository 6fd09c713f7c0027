// `launcher: slurm` outside of an allocation: the launch becomes a job that sbatch submits, in which `dtrain launch`
// starts the ranks with srun. Plain functions; one thread.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/run/launch.h"
#include "dtrain/run/run_folder.h"
#include "launch/outcome.h"
#include "launch/run_attempt.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// What would be submitted; empty: this launch is no such job. `run_dir`: empty where it is not known yet. ConfigError
// as batch_script().
std::string batch_script_of(const LaunchPlan& plan, const Variables& variables, const std::filesystem::path& run_dir);

// Submits the job, shows what it prints until it has ended, and passes interrupts on to it. The launch in the job
// writes the run's folder and says how it went (Outcome::reported).
Outcome submit_and_follow(const Attempt& attempt);

// The folder of a launch: a new one; in a job the one that its submitter has made. Where the job has been requeued,
// what its last attempt left there is put aside first, with an event that says why that ended.
RunFolder folder_of_launch(const LaunchRequest& request, const LaunchPlan& plan, const Variables& variables,
                           const Clock& clock);

}  // namespace dtrain::run
