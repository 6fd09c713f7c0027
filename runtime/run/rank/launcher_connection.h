// The connection of a rank to the `dtrain launch` that started it, directly or through mpirun or srun. Threads as in
// launcher_link.h.
#pragma once

#include <memory>
#include <string>

#include "dtrain/base/log.h"
#include "link/launcher_link.h"
#include "link/plane_link.h"
#include "rank/rank_identity.h"

namespace dtrain::run {

class LauncherConnection {
 public:
  // Reads the run's secret if it is in a file. Throws as SocketLink and PlaneLink do.
  LauncherConnection(const RankIdentity& identity, const Logger& log);

  LauncherLink& link() { return *link_; }
  PlaneLink* plane() { return plane_; }              // the same link if mpirun or srun started this rank; else null
  const std::string& name() const { return name_; }  // "the launcher (pid 4711)"
  // The secret that the ranks share for their control plane; empty: rank 0 makes one.
  const std::string& ranks_secret() const { return contact_.secrets.ranks; }
  // Removes the secret file, on the first rank of each host. Called once every rank of this host has read it.
  void remove_secret_file(const comm::World& world) const;

 private:
  LauncherContact contact_;  // empty in a child of the launcher
  std::string name_;
  PlaneLink* plane_ = nullptr;
  std::unique_ptr<LauncherLink> link_;
};

}  // namespace dtrain::run
