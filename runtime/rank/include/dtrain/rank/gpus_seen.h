// The GPUs of this machine, as NVML lists them, and other processes that compute on them.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/config/experiment.h"
#include "dtrain/host/gpu_setup.h"
#include "dtrain/host/gpus.h"
#include "dtrain/rank/environment.h"

namespace dtrain::rank {

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

// GPUs of this machine that a run on CPUs does not use.

// "2 GPUs (Tesla T4, Tesla T4)"; empty: there are none.
std::string gpus_text(const std::vector<host::VisibleGpu>& gpus);

// Returns the same text for this machine's GPUs that CUDA_VISIBLE_DEVICES (of `variables`) leaves; empty: there are
// none, or the experiment asks for CPUs (slot_type: cpu). May wait some seconds for a driver that hangs.
std::string find_unused_gpus(const config::Experiment& experiment, const Variables& variables);

// Returns the warning about them, and the reason why they are not used.
std::string unused_gpus_warning(const std::string& gpus, const std::string& why);

}  // namespace dtrain::rank
