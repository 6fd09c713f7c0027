// Opens the run's folder in a rank, however the run was started. Collective over `control`.
#pragma once

#include <functional>

#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/run_folder.h"
#include "folder/resume.h"
#include "link/plane_link.h"
#include "rank/compare_ranks.h"

namespace dtrain::run {

// A run without a launcher: rank 0 makes the folder with `make`, and all hosts must see it. If `make` throws a
// ConfigError, the other ranks throw one that refers to rank 0.
RunFolder open_own_folder(comm::ControlPlane& control, const RankHosts& hosts, const std::function<RunFolder()>& make);

// Rank 0 of a run without a launcher that goes on in its own folder (--continue): writes the plan with `write_plan`,
// puts the files of the attempt before aside, and returns the checkpoint to go on from, which it logs. `overrides`:
// the run's and new ones. ConfigError if the run is in progress, or as check_goes_on(), check_storage_stays().
ResumePoint reopen_own_folder(const RunFolder& folder, const config::Experiment& experiment,
                              const std::vector<std::string>& overrides, const std::function<void()>& write_plan,
                              const Logger& log);

// A run that a launcher has started through mpirun or srun. A host that does not see the launcher's folder gets one of
// its own under the same path, which the launcher collects at the end.
struct LaunchedFolder {
  RunFolder folder;
  bool is_launchers = true;
};
LaunchedFolder open_launched_folder(comm::ControlPlane& control, const LaunchOrders& orders);

}  // namespace dtrain::run
