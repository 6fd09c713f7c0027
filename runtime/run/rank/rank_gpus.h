// The GPU on which each rank trains. All ranks decide alike from what each of them sees. NVML looks at the GPUs, not
// CUDA, which would take memory on every GPU that it touches.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/comm/control.h"
#include "dtrain/config/resources.h"
#include "dtrain/host/gpus.h"
#include "environment.h"
#include "folder/plan_file.h"
#include "rank/compare_ranks.h"

namespace dtrain::run {

// The GPUs that one rank sees. Plain value.
struct GpuView {
  std::vector<host::VisibleGpu> gpus;  // in CUDA's order
  bool is_order_known = true;          // false: CUDA may number them in another order
  std::string why_none;                // if there are none
  bool any_unusable = false;           // there are some, but slot_type: auto leaves them out, and why_none says why
};

// auto leaves out GPUs that the program's libtorch cannot use. Waits for the driver, with a deadline. Called where no
// other thread reads or sets variables.
GpuView look_at_visible_gpus(config::SlotType wanted, const Variables& variables);

// Plain value.
struct RankGpus {
  bool on_gpus = false;
  std::optional<int> cuda_index;                // of this rank's GPU; empty: it trains on the CPU
  std::vector<std::optional<PlacedGpu>> ranks;  // of each rank, where it is known; empty: they train on CPUs
  std::string why_cpu;                          // if slot_type: auto finds too few GPUs
  std::vector<std::string> warnings;            // GPUs that other processes use, too
};

// Collective, except for kCpu. A rank uses the GPU of its local rank, or the only one that it sees. kAuto: GPUs if
// every host has enough, CPUs if none has. `look_for_others`: looks for other processes on the GPUs. AgreedError names
// host and GPUs: too few GPUs, some hosts with and others without, a GPU that two ranks would share, or one that other
// processes have for themselves.
RankGpus choose_gpus(comm::ControlPlane& control, const RankHosts& hosts, config::SlotType wanted, const GpuView& view,
                     bool look_for_others);

}  // namespace dtrain::run
