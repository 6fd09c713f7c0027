// One attempt at a run, from the start of its ranks until nothing of it is left running. launch() makes as many as the
// experiment allows; each way of starting ranks is a function here. They block; one thread.
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/run/run_folder.h"
#include "environment.h"
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
  LaunchTask& task;  // records every process that is started
};

// A process a slot on this machine, each watched from here.
Outcome run_local(const Attempt& attempt);
// On every host of the plan, by Open MPI's mpirun.
Outcome run_mpi(const Attempt& attempt);
// On the nodes of the Slurm allocation that this process is in, by srun.
Outcome run_slurm(const Attempt& attempt);

}  // namespace dtrain::run
