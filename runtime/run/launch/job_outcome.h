// What became of a job: from what its ranks said, and what mpirun or srun said, to a cause with rank and host. Plain
// functions; they look into log files.
#pragma once

#include "commands/mpirun_words.h"
#include "dtrain/run/run_folder.h"
#include "launch/job.h"
#include "launch/outcome.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// `name`: of what carried it out. A failure before any rank has joined is left without a remedy: whoever knows how the
// ranks are started looks further.
Outcome judge_job(const LaunchPlan& plan, const RunFolder& folder, const JobEnd& end, const JobWords& words,
                  const std::string& name);

}  // namespace dtrain::run
