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

// A run that may use GPUs waits longer: without nvidia-persistenced a driver takes seconds to start each GPU.
inline constexpr std::chrono::seconds kGpuPatienceOfRuns{30};

// Waits for the driver, at most for `patience`. Empty: it did not answer; the thread that asked it remains until the
// process ends.
std::optional<GpusSeen> look_at_gpus(std::chrono::seconds patience = kGpuPatience);
// The same for how they are set up.
std::optional<host::GpuSetups> look_at_gpu_setups(std::chrono::seconds patience = kGpuPatience);

}  // namespace dtrain::run
