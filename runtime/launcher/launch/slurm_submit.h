// `launcher: slurm` outside an allocation: the launch becomes a job that sbatch submits, in which `dtrain launch`
// starts the ranks with srun. Plain functions; one thread.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/rank/environment.h"
#include "dtrain/rank/run_folder.h"
#include "launch/attempts.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

// Returns the script that would be submitted; empty: this launch submits none. ConfigError as batch_script().
std::string batch_script_of(const PlacedLaunch& placed, const rank::Variables& variables);

// Submits the job, prints its output until it has ended, and passes interrupts on to it. The launch in the job writes
// the run's folder and reports the outcome (Outcome::reported).
Outcome submit_and_follow(const Attempt& attempt);

// True if this process is the Slurm job that a launch has submitted for the run in this folder.
bool is_job_of(const std::filesystem::path& run_dir, const rank::Variables& variables);

// Called in that job after its run was stopped with a checkpoint: queues the job again, unless the user has stopped it
// or Slurm ends it for another reason. Slurm then ends this process. Returns a line that says what was done; empty:
// nothing. SystemError.
std::string requeue_job(const rank::RunFolder& folder, const rank::Variables& variables);

}  // namespace dtrain::launcher
