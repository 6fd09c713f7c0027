// Which ranks have come to MPI: a rank inside MPI_Init cannot answer, and MPI itself does not name the missing ones.
// With a launcher, each rank publishes its arrival on the launcher's plane. Without one, it listens on a UNIX socket
// named by job and rank; ranks of the same host see that socket, and it ends with its process. One thread at a time.
#pragma once

#include <optional>
#include <string>

#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/world.h"
#include "link/plane_link.h"

namespace dtrain::run {

class MpiArrival {
 public:
  // Publishes that this rank has come. `plane` may be null. `job` is the same for all ranks of the job.
  MpiArrival(const comm::World& world, const std::string& job, PlaneLink* plane);
  // "rank 1, rank 3": the ranks that have not come, for the text of a time-out. Takes a moment, in which others look.
  std::string missing() const;

 private:
  bool has_come(int rank) const;
  std::string mark_of(int rank) const;

  const comm::World& world_;
  const std::string job_;
  PlaneLink* const plane_;
  std::optional<UnixListener> mark_;
};

}  // namespace dtrain::run
