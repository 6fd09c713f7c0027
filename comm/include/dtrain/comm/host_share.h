// Memory that is made once on each host and mapped by every local rank, such as a data set.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/shared_memory.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// Collective over the ranks of one host. `make` runs on local rank 0 alone; the others map what it made. An exception
// of `make` is thrown on local rank 0 and reaches the others as a CommError with its text. `name` is unique per call.
// Time-outs call local rank i members[i], the run's rank; without members its number on the host, where the run has
// several. `access`: whether the ranks that map it may write to it.
enum class HostAccess { kRead, kWrite };
SharedMemory share_on_host(ControlPlane& control, const std::string& name, const std::function<SharedMemory()>& make,
                           const std::vector<int>& members = {}, HostAccess access = HostAccess::kRead);

}  // namespace dtrain::comm
