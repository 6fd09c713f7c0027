// Memory that is made once on each host and mapped by every local rank, such as a data set.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/shared_memory.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// Collective over the ranks of one host. Only local rank 0 runs `make`; the others map its memory. An exception of
// `make` is thrown on local rank 0; the others throw a CommError with its text. `name` is unique per call. Time-outs
// name local rank i by members[i], its rank in the run; without members, by its number on the host if the run has
// several hosts. `access`: whether the ranks that map it may write to it.
enum class HostAccess { kRead, kWrite };
SharedMemory share_on_host(ControlPlane& control, const std::string& name, const std::function<SharedMemory()>& make,
                           const std::vector<int>& members = {}, HostAccess access = HostAccess::kRead);

}  // namespace dtrain::comm
