// The setup and connections of this machine's NVIDIA GPUs, as the driver's management library (NVML) reports them and
// nvidia-smi shows them. NVML's calls can take long, and never return if a driver hangs: call from a thread that may
// wait. One thread at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/host/gpus.h"

namespace dtrain::host {

// The numbers are NVML's, as in the other enums here. Current drivers treat kExclusiveThread as kExclusiveProcess.
enum class ComputeMode { kShared = 0, kExclusiveThread = 1, kProhibited = 2, kExclusiveProcess = 3 };

// The reasons for which a GPU's clocks are lower than they could be.
struct SlowdownReasons {
  bool idle = false;
  bool application_clocks = false;  // nvidia-smi -ac has set them
  bool power_limit = false;         // usual under load
  bool hardware = false;            // too hot, too much power, or the power supply demands it
  bool heat = false;
  bool power_brake = false;  // the power supply demands it
};

// The GPUs of a system with NVSwitch, and those of NVLink between hosts, register with a service before they can be
// used.
enum class FabricState { kNotSupported = 0, kNotStarted = 1, kInProgress = 2, kCompleted = 3 };

struct GpuProcess {
  pid_t pid = 0;                        // on the host, also from inside a container
  std::optional<std::uint64_t> memory;  // bytes of the GPU's memory
};

// A value that a GPU does not report is empty.
struct GpuSetup {
  int index = 0;  // as in GpuInfo
  std::string name;
  std::optional<bool> persistence;
  std::optional<ComputeMode> compute_mode;
  std::optional<bool> mig;  // MIG mode: the GPU is divided into several
  std::optional<bool> ecc;
  std::optional<bool> ecc_pending;   // after the next restart
  std::optional<unsigned> sm_clock;  // MHz, like the next three
  std::optional<unsigned> most_sm_clock;
  std::optional<unsigned> application_clock;
  std::optional<unsigned> default_application_clock;
  std::optional<SlowdownReasons> slowdown;
  std::optional<int> nvlinks;         // number of NVLinks
  std::optional<int> active_nvlinks;  // number of active NVLinks
  std::optional<FabricState> fabric;
  std::optional<std::vector<GpuProcess>> processes;  // that compute on the GPU
};

// The nearest common part of the machine above two GPUs.
enum class Ancestor { kBoard = 0, kSwitch = 10, kSwitches = 20, kHostBridge = 30, kNode = 40, kSystem = 50 };
// Returns the word of nvidia-smi topo -m: "PIX", "PXB", "PHB", "NODE", "SYS".
std::string to_string(Ancestor ancestor);

enum class PeerAccess {
  kYes = 0,
  kChipset = 1,   // the chipset does not support it
  kGpu = 2,       // the GPUs do not support it
  kTopology = 3,  // the place of the GPUs on the machine's buses does not allow it
  kDisabled = 4,  // an option of the driver disables it
  kNo = 5,        // not supported
  kUnknown = 6
};

struct GpuPair {
  int first = 0;  // indices as in GpuInfo; first < second
  int second = 0;
  std::optional<Ancestor> ancestor;
  std::optional<PeerAccess> peer_access;  // the worse of reading and writing
  std::optional<bool> nvlink;             // NVLink joins them, directly or through switches
};

struct GpuSetups {
  std::string driver;          // its version, such as "580.65.06"; empty: not reported
  std::vector<GpuSetup> gpus;  // GPUs that this process may use, by index
  std::vector<GpuPair> pairs;  // each pair of these GPUs once
};

// Reads the setup. Without the library or a driver there are no GPUs, which is no error.
GpuSetups read_gpu_setups(const std::string& library = kNvmlLibrary);

}  // namespace dtrain::host
