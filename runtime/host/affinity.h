// Affinity masks. Private to host.
#pragma once

#include <vector>

#include <sys/types.h>

namespace dtrain::host {

// Returns the mask of a process (0: of the calling thread), ascending. SystemError: the kernel does not report it.
std::vector<int> affinity(pid_t process = 0);

}  // namespace dtrain::host
