// The interface between the library train and the module cuda_graph. Raise the version with every change to
// DeviceGraph, so that a module of another build is refused instead of called.
#pragma once

#include <memory>

#include "graph/device_graph.h"

namespace dtrain::train {

inline constexpr int kDeviceGraphAbi = 1;
inline constexpr const char* kDeviceGraphFactory = "dtrain_cuda_graph_make";

// Sets `made` and returns 0, or returns the version for which the module was built.
using DeviceGraphFactory = int(int abi, std::unique_ptr<DeviceGraph>& made);

}  // namespace dtrain::train
