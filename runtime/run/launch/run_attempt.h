// One attempt at a run, from the start of its ranks until all of its processes have ended. run_attempts() makes as many
// as the experiment allows; here is one function for each way of starting ranks. They block; one thread.
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/run/run_folder.h"
#include "environment.h"
#include "folder/resume.h"
#include "folder/screen.h"
#include "launch/launch_events.h"
#include "launch/launch_signals.h"
#include "launch/launch_task.h"
#include "launch/outcome.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

struct Attempt {
  const LaunchPlan& plan;
  const RunFolder& folder;
  LaunchEvents& events;
  Screen& screen;
  const Clock& clock;
  const Variables& variables;
  LaunchSignals& signals;
  LaunchTask& task;    // records every process that is started
  ResumePoint resume;  // where the ranks go on
};

// One process for each slot on this machine, watched by this process.
Outcome run_local(const Attempt& attempt);
// On every host of the plan, with Open MPI's mpirun.
Outcome run_mpi(const Attempt& attempt);
// On the nodes of the Slurm allocation that this process is in, with srun.
Outcome run_slurm(const Attempt& attempt);

}  // namespace dtrain::run
