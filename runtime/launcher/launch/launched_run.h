// The run that a launch carries out: its folder, and where it goes on. One thread.
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_lock.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

struct LaunchedRun {
  RunFolder folder;
  RunLock lock;          // held until the launch has ended, except by one that submits a job
  ResumePoint resume;    // the checkpoint from which the first attempt goes on
  bool is_job = false;   // this process is the Slurm job that another launch has submitted for this folder
  bool goes_on = false;  // the run was started before
};

// Opens a new folder, the folder of the run that goes on (`continued`, null for a new run), or in a Slurm job the
// folder that the submitting process has made. Puts the files of an earlier attempt aside; after Slurm has requeued the
// job, writes an event with the reason for its end. ConfigError if the run is in progress, or as check_goes_on() and
// find_resume_point().
LaunchedRun open_launched_run(const LaunchRequest& request, const LaunchPlan& plan, const ContinuedRun* continued,
                              const Variables& variables, const Clock& clock);

}  // namespace dtrain::run
