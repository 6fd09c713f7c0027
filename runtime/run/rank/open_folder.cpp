#include "rank/open_folder.h"

#include "dtrain/base/error.h"
#include "dtrain/run/checkpoint_folder.h"
#include "folder/host_folder.h"
#include "folder/plan_file.h"
#include "folder/resume.h"

namespace dtrain::run {
namespace {

constexpr const char* kFolderKey = "run.folder";

}  // namespace

RunFolder open_own_folder(comm::ControlPlane& control, const RankHosts& hosts, const std::function<RunFolder()>& make) {
  RunFolder folder;
  if (control.world().rank == 0) {
    try {
      folder = make();
    } catch (const ConfigError&) {
      control.set(kFolderKey, "");
      throw;
    }
    control.set(kFolderKey, folder.path.string());
  } else {
    folder.path = control.get(kFolderKey);
    if (folder.path.empty()) throw ConfigError("rank 0 was given bad input; see the error of rank 0");
  }
  check_folder_is_shared(control, hosts, folder.path);
  return folder;
}

ResumePoint reopen_own_folder(const RunFolder& folder, const config::Experiment& experiment,
                              const std::vector<std::string>& overrides, const std::function<void()>& write_plan,
                              const Logger& log) {
  const ContinuedRun run = read_continued_run(folder.path.string());
  check_not_in_progress(folder);
  check_storage_stays(run, overrides, experiment);
  const std::string claimed = claim_checkpoint_folder(folder);
  ResumePoint point = find_resume_point(folder);
  point.claimed = claimed;
  check_goes_on(run, experiment, point);
  put_aside(folder, {.metrics = point.exists()});
  write_plan();
  update_plan_file(folder.plan(), "before", plan_before(run));
  for (const std::string& text : differences_from(run, read_json(folder.plan()))) log->warn("{}", text);
  for (const std::string& text : warnings_of(point)) log->warn("{}", text);
  log->info("the run goes on from {}", text_of(point));
  return point;
}

LaunchedFolder open_launched_folder(comm::ControlPlane& control, const LaunchOrders& orders) {
  LaunchedFolder opened{.folder = {orders.run_dir}};
  opened.is_launchers = is_folder_of(opened.folder, orders.token);
  if (!opened.is_launchers && control.world().local_rank == 0) {
    make_host_folder(opened.folder, orders.token, orders.plan, orders.experiment);
  }
  control.barrier(kFolderKey);
  return opened;
}

}  // namespace dtrain::run
