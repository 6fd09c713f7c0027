// How the ranks of one host get memory that one of them made: rank 0 sends its file descriptor to the others.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"
#include "shared_memory/memory.h"

namespace dtrain::comm {

// Returns the check of the waits of a setup: it throws if a rank has failed, and at the deadline. `what` is set up, for
// the text of a time-out. `control` outlives the check.
WaitCheck setup_check(ControlPlane& control, const CommunicatorOptions& options, const std::string& what);

// Hands file descriptors to the ranks of one host, and lets these ranks meet. Each rank has a UNIX socket to rank 0,
// which sends a few file descriptors at a time: the kernel limits the number in flight for a user. One thread at a
// time.
class DescriptorHub {
 public:
  // Collective. If the ranks are on different hosts, a CommError names them. `check`, also below: see WaitCheck.
  // `arena`: the id of the arena that this rank will use, which has to be the same on all (CommError); empty: none.
  DescriptorHub(ControlPlane& control, const WaitCheck& check, RankNames names, const std::string& arena);

  // Collective: gives rank 0's file descriptor to the other ranks; on rank 0 the result is empty.
  UniqueFd spread(int fd, const WaitCheck& check);
  // Collective: returns once every rank has called it.
  void meet(const WaitCheck& check);

 private:
  void join(UnixListener& listener, const WaitCheck& check);
  // Returns the next message of a rank (rank 0 receives from any, the others from rank 0), which must be `expected`.
  UnixMessage receive_from(int rank, const char* expected, const WaitCheck& check);
  void send_to(int rank, const char* text, std::span<const int> fds = {});
  std::string name_and_state(int rank) const;

  ControlPlane& control_;
  const RankNames names_;
  int rank_ = 0;
  int world_size_ = 1;
  std::vector<UnixSocket> sockets_;  // rank 0: by rank; others: element 0, to rank 0
};

// Returns the memory that rank 0 made, of at least `bytes`, on every rank. Collective.
SharedMemory share_made(SharedMemory made, std::size_t bytes, DescriptorHub& hub, const RankNames& names,
                        const WaitCheck& check);

}  // namespace dtrain::comm
