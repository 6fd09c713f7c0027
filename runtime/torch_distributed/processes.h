// The processes of the ranks of a world that are on this host.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <vector>

#include <sys/syscall.h>
#include <sys/types.h>

#include "dtrain/base/file.h"

namespace dtrain::torch_distributed {

// A rank that is killed is missed by its connection to rank 0, unless a fork of it, as a data loader's worker, has that
// connection, too, and lives on. So its process is asked as well.
class Processes {
 public:
  // `pids`: by rank; 0: of another host.
  explicit Processes(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids) {
      processes_.emplace_back(pid == 0 || pid == getpid() ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    }
  }

  bool has_ended(int rank) const {
    pollfd process{processes_.at(static_cast<std::size_t>(rank)).get(), POLLIN, 0};
    return process.fd >= 0 && poll(&process, 1, 0) > 0;
  }

 private:
  std::vector<UniqueFd> processes_;  // empty: of this rank, of another host, or the kernel does not tell
};

}  // namespace dtrain::torch_distributed
