#include "rank/launcher_connection.h"

#include <filesystem>

#include "link/secret_file.h"

namespace dtrain::run {

LauncherConnection::LauncherConnection(const RankIdentity& identity, const Logger& log) {
  const RankEnvironment& environment = identity.environment;
  if (environment.is_child()) {
    name_ = "the launcher (pid " + std::to_string(environment.handover->launcher_pid) + ")";
    link_ = std::make_unique<SocketLink>(UniqueFd(environment.handover->link_fd));
    return;
  }
  contact_ = environment.launcher.value();
  name_ = "the launcher (" + contact_.address + ":" + std::to_string(contact_.port) + ")";
  if (!contact_.secret_file.empty()) contact_.secrets = read_secret_file(contact_.secret_file);
  auto plane = std::make_unique<PlaneLink>(contact_, environment.world, identity.host.name, log);
  plane_ = plane.get();
  link_ = std::move(plane);
}

void LauncherConnection::remove_secret_file(const comm::World& world) const {
  if (contact_.secret_file.empty() || world.local_rank != 0) return;
  std::error_code ignored;
  std::filesystem::remove(contact_.secret_file, ignored);
}

}  // namespace dtrain::run
