// A run that no launcher has started: rank 0 makes the run's folder, or goes on in it, and writes the plan.
#pragma once

#include "compare_ranks.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"
#include "rank_gpus.h"
#include "rank_identity.h"
#include "rank_output.h"

namespace dtrain::run {

// Opens the run's folder, which all hosts must see, and on rank 0 also its lock and its events: a new folder, or with
// --continue that of the run, in which the files of the attempt before are put aside. Logs the plan's warnings and
// where a run goes on. Collective over `control`. ConfigError if the run is in progress, or as create_run_folder(),
// check_checkpoint_storage(), check_goes_on() and check_storage_stays(); the other ranks throw one that refers to rank
// 0.
void open_own_run(comm::ControlPlane& control, const RankIdentity& identity, const Assignment& assignment,
                  const RankHosts& hosts, const RankGpus& gpus, RankFiles& files, const Logger& log);

}  // namespace dtrain::run
