// The GPUs of this machine, as NVML lists them, and other processes that compute on them.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

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
// Does the same for the setup of the GPUs.
std::optional<host::GpuSetups> look_at_gpu_setups(std::chrono::seconds patience = kGpuPatience);

// GPUs of this machine on which other processes compute. Pure function; any thread.
struct GpuUse {
  std::string warning;  // others use it, too; empty: nobody does
  std::string refusal;  // a rank cannot use it; empty: it can
  std::string remedy;   // for the refusal
};

// `gpu`: its name in texts. `own`: processes that belong to the run.
GpuUse use_of_gpu(const host::GpuSetup& setup, const std::string& gpu, const std::set<pid_t>& own);

}  // namespace dtrain::run
