// Finds, without CUDA, the GPUs that CUDA would show to a process: NVML's list, restricted by CUDA_VISIBLE_DEVICES.
// Pure functions; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/host/gpus.h"

namespace dtrain::host {

struct VisibleGpu {
  std::string id;               // as CUDA_VISIBLE_DEVICES names it: the UUID, or the name of a MIG instance
  std::optional<GpuInfo> info;  // NVML's report; empty: it is a MIG instance
};

// `all`: as NVML lists them. `visible`: the value of CUDA_VISIBLE_DEVICES; empty optional: it is not set, and all are
// visible. It is read as CUDA reads it: indices, UUIDs or unique beginnings of UUIDs, and names of MIG instances, which
// are not checked. The first entry that names no GPU ends the list. If a GPU is named twice, the list is empty. Indices
// count in the order of `all`, as with CUDA_DEVICE_ORDER=PCI_BUS_ID.
std::vector<VisibleGpu> visible_gpus(const std::vector<GpuInfo>& all, const std::optional<std::string>& visible);

// True if CUDA may number the GPUs in another order than NVML. CUDA puts the fastest first if the GPUs differ, unless
// CUDA_DEVICE_ORDER or UUIDs determine the order.
bool is_order_unknown(const std::vector<GpuInfo>& all, const std::map<std::string, std::string>& variables);

}  // namespace dtrain::host
