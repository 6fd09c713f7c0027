#include "rank/open_folder.h"

#include "dtrain/base/error.h"
#include "folder/host_folder.h"

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
