// `launcher: slurm` outside an allocation: the launch becomes a job that sbatch submits, in which `dtrain launch`
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

// The script that would be submitted; empty: this launch submits none. `run_dir` is empty while it is not known.
// ConfigError as batch_script().
std::string batch_script_of(const LaunchPlan& plan, const Variables& variables, const std::filesystem::path& run_dir);

// Submits the job, prints its output until it has ended, and passes interrupts on to it. The launch in the job writes
// the run's folder and reports the outcome (Outcome::reported).
Outcome submit_and_follow(const Attempt& attempt);

// The folder of a launch: a new one, or in a job the one that the submitting process has made. After Slurm has requeued
// the job, the last attempt there is put aside first, with an event that gives the reason for its end.
RunFolder folder_of_launch(const LaunchRequest& request, const LaunchPlan& plan, const Variables& variables,
                           const Clock& clock);

}  // namespace dtrain::run
