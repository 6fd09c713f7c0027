// Exchanges file descriptors among the ranks of one host: each rank has a UNIX socket to rank 0, which collects and
// hands on. One thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "dtrain/base/fd.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/control.h"
#include "engine/rank_names.h"

namespace dtrain::comm {

class DescriptorHub {
 public:
  // `check` throws when waiting has become pointless (here and below); it is called every few milliseconds.
  using Check = std::function<void()>;

  // Collective. Ranks of different hosts are a CommError that names them.
  DescriptorHub(ControlPlane& control, const Check& check, RankNames names);

  // Collective: every rank gives one descriptor and gets those of all, by rank (its own duplicated).
  std::vector<UniqueFd> exchange(int fd, const Check& check);
  // Collective: rank 0 gives a descriptor, the others get it.
  UniqueFd spread(int fd, const Check& check);

 private:
  UnixMessage receive_from(int rank, const Check& check);

  const RankNames names_;
  int rank_ = 0;
  int world_size_ = 1;
  std::vector<UnixSocket> sockets_;  // rank 0: by rank; others: element 0, to rank 0
};

}  // namespace dtrain::comm
