// The GPUs of this machine, as NVML lists them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/host/gpu_setup.h"
#include "dtrain/host/gpus.h"

namespace dtrain::run {

struct GpusSeen {
  std::vector<host::GpuInfo> gpus;
  std::vector<std::string> warnings;
};

inline constexpr std::chrono::seconds kGpuPatience{5};

// Waits for the driver, at most for kGpuPatience. Empty: it did not answer; the thread that asked it remains until the
// process ends.
std::optional<GpusSeen> look_at_gpus();
// The same for how they are set up.
std::optional<host::GpuSetups> look_at_gpu_setups();

}  // namespace dtrain::run
