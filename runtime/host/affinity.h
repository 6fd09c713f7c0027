// The affinity mask of the calling thread. Private to host.
#pragma once

#include <vector>

namespace dtrain::host {

// Ascending. SystemError: the kernel does not report it.
std::vector<int> affinity();

}  // namespace dtrain::host
