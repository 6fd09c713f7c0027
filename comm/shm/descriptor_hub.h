// Hands file descriptors to the ranks of one host, and lets these ranks meet. Each rank has a UNIX socket to rank 0,
// which sends a few file descriptors at a time: the kernel limits the number in flight for a user. One thread at a
// time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "collective/rank_names.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/control.h"
#include "shared_memory/memory.h"

namespace dtrain::comm {

class DescriptorHub {
 public:
  // Collective. If the ranks are on different hosts, a CommError names them. `check`, also below: see WaitCheck.
  DescriptorHub(ControlPlane& control, const WaitCheck& check, RankNames names);

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

}  // namespace dtrain::comm
