// `launcher: slurm` outside an allocation: the launch becomes a job that sbatch submits, in which `dtrain launch`
// starts the ranks with srun. Plain functions; one thread.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/rank/run_folder.h"
#include "launch/attempts.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// Returns the script that would be submitted; empty: this launch submits none. `run_dir` is empty while it is not
// known. ConfigError as batch_script().
std::string batch_script_of(const LaunchPlan& plan, const Variables& variables, const std::filesystem::path& run_dir);

// Submits the job, prints its output until it has ended, and passes interrupts on to it. The launch in the job writes
// the run's folder and reports the outcome (Outcome::reported).
Outcome submit_and_follow(const Attempt& attempt);

// True if this process is the Slurm job that a launch has submitted for the run in this folder.
bool is_job_of(const std::filesystem::path& run_dir, const Variables& variables);

// Called in that job after its run was stopped with a checkpoint: queues the job again, unless the user has stopped it
// or Slurm ends it for another reason. Slurm then ends this process. Returns a line that says what was done; empty:
// nothing. SystemError.
std::string requeue_job(const RunFolder& folder, const Variables& variables);

}  // namespace dtrain::run
