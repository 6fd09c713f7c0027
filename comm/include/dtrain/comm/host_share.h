// Memory, such as a data set, that exists once on each host and that every local rank maps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/shared_memory.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// Collective over the ranks of one host. Only local rank 0 runs `make`; the others map its memory. If `make` throws,
// local rank 0 throws that exception and the others a CommError with its text. `name` is unique per call. Time-outs
// name local rank i by members[i], its rank in the run; without members, by its number on the host if the run has
// several hosts. `access`: kWrite if the ranks that map the memory may write to it.
enum class HostAccess { kRead, kWrite };
SharedMemory share_on_host(ControlPlane& control, const std::string& name, const std::function<SharedMemory()>& make,
                           const std::vector<int>& members = {}, HostAccess access = HostAccess::kRead);

}  // namespace dtrain::comm
