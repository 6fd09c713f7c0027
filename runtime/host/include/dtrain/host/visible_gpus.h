// Which GPUs CUDA shows to a process, without CUDA: what NVML lists, restricted by CUDA_VISIBLE_DEVICES. Pure
// functions; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/host/gpus.h"

namespace dtrain::host {

struct VisibleGpu {
  std::string id;               // as CUDA_VISIBLE_DEVICES names it: the UUID, or the name of a MIG instance
  std::optional<GpuInfo> info;  // what NVML reports of it; empty: it is a MIG instance
};

// `all`: as NVML lists them. `visible`: the value of CUDA_VISIBLE_DEVICES; empty optional: it is not set, and all are
// visible. As CUDA reads it: indices, UUIDs or unique beginnings of UUIDs, and names of MIG instances, which are
// counted as given; the first entry that names no GPU ends the list; a GPU that is named twice empties it. Indices
// count in the order of `all`, as with CUDA_DEVICE_ORDER=PCI_BUS_ID.
std::vector<VisibleGpu> visible_gpus(const std::vector<GpuInfo>& all, const std::optional<std::string>& visible);

// Whether CUDA may number the GPUs in another order than NVML: they differ, so the fastest comes first, and neither
// CUDA_DEVICE_ORDER nor UUIDs say otherwise.
bool is_order_unknown(const std::vector<GpuInfo>& all, const std::map<std::string, std::string>& variables);

}  // namespace dtrain::host
