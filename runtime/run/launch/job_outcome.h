// How a job ended: derives a cause with rank and host from the reports of its ranks and the messages of mpirun or srun.
// Plain functions; they read log files.
#pragma once

#include "commands/mpirun_words.h"
#include "dtrain/run/run_folder.h"
#include "launch/job.h"
#include "launch/outcome.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// `name` is "mpirun" or "srun". If no rank joined and none reported an error, run_mpi() looks for the cause on the
// hosts (RemoteHosts::find_fault()) and adds the remedy.
Outcome judge_job(const LaunchPlan& plan, const RunFolder& folder, const JobEnd& end, const JobWords& words,
                  const std::string& name);

}  // namespace dtrain::run
