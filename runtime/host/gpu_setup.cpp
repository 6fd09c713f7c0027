#include "dtrain/host/gpu_setup.h"

#include <algorithm>
#include <array>

#include "nvml_session.h"

namespace dtrain::host {
namespace {

// One function of NVML. A call that fails, or that this version of the library lacks, has no result.
template <typename Function>
class Call {
 public:
  Call(const NvmlSession& session, const char* name) : function_(session.find(name)) {}
  template <typename... Arguments>
  bool succeeds(Arguments... arguments) const {
    return function_ && function_(arguments...) == nvml::kSuccess;
  }
  explicit operator bool() const { return function_ != nullptr; }
  Function& operator*() const { return *function_; }

 private:
  Function* function_;
};

struct Calls {
  const NvmlSession& session;
  Call<nvml::SystemGetText> driver{session, "nvmlSystemGetDriverVersion"};
  Call<nvml::DeviceGetText> name{session, "nvmlDeviceGetName"};
  Call<nvml::DeviceGetMode> persistence{session, "nvmlDeviceGetPersistenceMode"};
  Call<nvml::DeviceGetMode> compute_mode{session, "nvmlDeviceGetComputeMode"};
  Call<nvml::DeviceGetTwoModes> mig{session, "nvmlDeviceGetMigMode"};
  Call<nvml::DeviceGetTwoModes> ecc{session, "nvmlDeviceGetEccMode"};
  Call<nvml::DeviceGetClock> clock{session, "nvmlDeviceGetClockInfo"};
  Call<nvml::DeviceGetClock> most_clock{session, "nvmlDeviceGetMaxClockInfo"};
  Call<nvml::DeviceGetClock> application_clock{session, "nvmlDeviceGetApplicationsClock"};
  Call<nvml::DeviceGetClock> default_application_clock{session, "nvmlDeviceGetDefaultApplicationsClock"};
  Call<nvml::DeviceGetCurrentClocksThrottleReasons> slowdown{session, "nvmlDeviceGetCurrentClocksThrottleReasons"};
  Call<nvml::DeviceGetCurrentClocksThrottleReasons> slowdown_renamed{
      session, "nvmlDeviceGetCurrentClocksEventReasons"};  // the name that CUDA 14 keeps
  Call<nvml::DeviceGetNvLinkState> nvlink{session, "nvmlDeviceGetNvLinkState"};
  Call<nvml::DeviceGetGpuFabricInfoV> fabric{session, "nvmlDeviceGetGpuFabricInfoV"};
  Call<nvml::DeviceGetComputeRunningProcesses> processes{session, "nvmlDeviceGetComputeRunningProcesses_v3"};
  Call<nvml::DeviceGetTopologyCommonAncestor> ancestor{session, "nvmlDeviceGetTopologyCommonAncestor"};
  Call<nvml::DeviceGetP2PStatus> peer{session, "nvmlDeviceGetP2PStatus"};
};

std::optional<unsigned> clock_of(const Call<nvml::DeviceGetClock>& call, nvml::Device device) {
  unsigned megahertz = 0;
  return call.succeeds(device, nvml::kSmClock, &megahertz) ? std::optional(megahertz) : std::nullopt;
}

std::optional<SlowdownReasons> slowdown_of(const Calls& calls, nvml::Device device) {
  unsigned long long reasons = 0;
  if (!calls.slowdown.succeeds(device, &reasons) && !calls.slowdown_renamed.succeeds(device, &reasons)) return {};
  const auto has = [&](unsigned long long bits) { return (reasons & bits) != 0; };
  return SlowdownReasons{.idle = has(nvml::kIdle),
                         .application_clocks = has(nvml::kApplicationClocks),
                         .power_limit = has(nvml::kPowerLimit),
                         .hardware = has(nvml::kHardwareSlowdown),
                         .heat = has(nvml::kSlowedByHeat),
                         .power_brake = has(nvml::kPowerBrake)};
}

std::optional<std::vector<GpuProcess>> processes_of(const Calls& calls, nvml::Device device) {
  std::vector<nvml::ProcessInfo> found;
  if (!calls.processes || running_processes(*calls.processes, device, found) != nvml::kSuccess) return {};
  std::vector<GpuProcess> processes;
  for (const nvml::ProcessInfo& info : found) {
    GpuProcess process{.pid = static_cast<pid_t>(info.pid), .memory = {}};
    if (info.used_memory != nvml::kNotAvailable) process.memory = info.used_memory;
    processes.push_back(process);
  }
  return processes;
}

// NVML does not report the number of links of a GPU: it refuses those that the GPU does not have.
void read_nvlinks(const Calls& calls, nvml::Device device, GpuSetup& setup) {
  int links = 0;
  int active_links = 0;
  for (unsigned link = 0; link < nvml::kMostNvlinks; ++link) {
    int active = 0;
    if (!calls.nvlink.succeeds(device, link, &active)) continue;
    ++links;
    if (active != 0) ++active_links;
  }
  if (links == 0) return;
  setup.nvlinks = links;
  setup.active_nvlinks = active_links;
}

GpuSetup setup_of(const Calls& calls, nvml::Device device, int index) {
  GpuSetup setup{.index = index};
  std::array<char, nvml::kLongestText + 1> name{};
  if (calls.name.succeeds(device, name.data(), nvml::kLongestText)) setup.name = name.data();
  int mode = 0;
  int pending = 0;
  if (calls.persistence.succeeds(device, &mode)) setup.persistence = mode != 0;
  if (calls.compute_mode.succeeds(device, &mode)) setup.compute_mode = static_cast<ComputeMode>(mode);
  if (calls.mig.succeeds(device, &mode, &pending)) setup.mig = mode != 0;
  if (calls.ecc.succeeds(device, &mode, &pending)) {
    setup.ecc = mode != 0;
    setup.ecc_pending = pending != 0;
  }
  setup.sm_clock = clock_of(calls.clock, device);
  setup.most_sm_clock = clock_of(calls.most_clock, device);
  setup.application_clock = clock_of(calls.application_clock, device);
  setup.default_application_clock = clock_of(calls.default_application_clock, device);
  setup.slowdown = slowdown_of(calls, device);
  read_nvlinks(calls, device, setup);
  nvml::FabricInfo fabric{};
  fabric.version = static_cast<unsigned>(sizeof fabric) | nvml::kFabricInfoVersion2;
  if (calls.fabric.succeeds(device, &fabric)) setup.fabric = static_cast<FabricState>(fabric.state);
  setup.processes = processes_of(calls, device);
  return setup;
}

void read_pair(const Calls& calls, nvml::Device first, nvml::Device second, GpuPair& pair) {
  int level = 0;
  if (calls.ancestor.succeeds(first, second, &level)) pair.ancestor = static_cast<Ancestor>(level);
  int read = 0;
  int write = 0;
  if (calls.peer.succeeds(first, second, nvml::kPeerRead, &read) &&
      calls.peer.succeeds(first, second, nvml::kPeerWrite, &write)) {
    pair.peer_access = static_cast<PeerAccess>(std::clamp(std::max(read, write), 0, 6));
  }
  int nvlink = 0;
  if (calls.peer.succeeds(first, second, nvml::kPeerNvlink, &nvlink)) pair.nvlink = nvlink == 0;
}

}  // namespace

std::string to_string(Ancestor ancestor) {
  switch (ancestor) {
    case Ancestor::kBoard:
    case Ancestor::kSwitch:
      return "PIX";
    case Ancestor::kSwitches:
      return "PXB";
    case Ancestor::kHostBridge:
      return "PHB";
    case Ancestor::kNode:
      return "NODE";
    case Ancestor::kSystem:
      break;
  }
  return "SYS";
}

GpuSetups read_gpu_setups(const std::string& library) {
  GpuSetups setups;
  NvmlSession session(library);
  if (!session.opened() || !session.complete() || session.start() != nvml::kSuccess) return setups;
  const Calls calls{session};
  std::array<char, nvml::kLongestText + 1> driver{};
  if (calls.driver.succeeds(driver.data(), nvml::kLongestText)) setups.driver = driver.data();
  unsigned count = 0;
  if (session.count(&count) != nvml::kSuccess) return setups;
  std::vector<nvml::Device> devices;
  for (unsigned index = 0; index < count; ++index) {
    nvml::Device device = nullptr;
    if (session.handle(index, &device) != nvml::kSuccess) continue;
    setups.gpus.push_back(setup_of(calls, device, static_cast<int>(index)));
    devices.push_back(device);
  }
  for (std::size_t first = 0; first < devices.size(); ++first) {
    for (std::size_t second = first + 1; second < devices.size(); ++second) {
      GpuPair pair{.first = setups.gpus[first].index, .second = setups.gpus[second].index};
      read_pair(calls, devices[first], devices[second], pair);
      setups.pairs.push_back(pair);
    }
  }
  return setups;
}

}  // namespace dtrain::host
