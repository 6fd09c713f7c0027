// The hosts of the ranks, and if all of them see the folder of the checkpoints. Plain value.
#pragma once

#include <filesystem>
#include <vector>

#include "dtrain/comm/control.h"

namespace dtrain::train {

struct CheckpointHosts {
  int host = 0, hosts = 1;      // this rank's host, in the order of first ranks; their number
  int local_rank = 0;           // among the ranks of this host
  std::vector<int> host_of;     // host of each rank
  std::vector<int> ranks_here;  // ranks of this host, ascending
  bool folder_is_shared = true;

  bool is_leader() const { return local_rank == 0; }
  // True if this host has a saver: only the first has one, unless all see the folder.
  bool saves() const { return host == 0 || folder_is_shared; }
};

// Collective. Makes the folder, if there are several hosts. SystemError.
CheckpointHosts find_checkpoint_hosts(comm::ControlPlane& control, const std::filesystem::path& folder);

}  // namespace dtrain::train
