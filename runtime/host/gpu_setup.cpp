#include "dtrain/host/gpu_setup.h"

#include <algorithm>
#include <array>

#include "nvml_session.h"

namespace dtrain::host {
namespace {

std::optional<unsigned> clock_of(const nvml::DeviceClock& call, nvml::Device device) {
  unsigned megahertz = 0;
  return call.succeeds(device, nvml::kSmClock, &megahertz) ? std::optional(megahertz) : std::nullopt;
}

std::optional<SlowdownReasons> slowdown_of(const NvmlSession& session, nvml::Device device) {
  unsigned long long reasons = 0;
  if (!session.slowdown.succeeds(device, &reasons) && !session.slowdown_renamed.succeeds(device, &reasons)) return {};
  const auto has = [&](unsigned long long bits) { return (reasons & bits) != 0; };
  return SlowdownReasons{.idle = has(nvml::kIdle),
                         .application_clocks = has(nvml::kApplicationClocks),
                         .power_limit = has(nvml::kPowerLimit),
                         .hardware = has(nvml::kHardwareSlowdown),
                         .heat = has(nvml::kSlowedByHeat),
                         .power_brake = has(nvml::kPowerBrake)};
}

std::optional<std::vector<GpuProcess>> processes_of(const NvmlSession& session, nvml::Device device) {
  std::vector<nvml::ProcessInfo> found;
  if (!session.processes || session.list_processes(device, found) != nvml::kSuccess) return {};
  std::vector<GpuProcess> processes;
  for (const nvml::ProcessInfo& info : found) {
    GpuProcess process{.pid = static_cast<pid_t>(info.pid), .memory = {}};
    if (info.used_memory != nvml::kNotAvailable) process.memory = info.used_memory;
    processes.push_back(process);
  }
  return processes;
}

// NVML does not report the number of links of a GPU: it refuses those that the GPU does not have.
void read_nvlinks(const NvmlSession& session, nvml::Device device, GpuSetup& setup) {
  int links = 0;
  int active_links = 0;
  for (unsigned link = 0; link < nvml::kMostNvlinks; ++link) {
    int active = 0;
    if (!session.nvlink.succeeds(device, link, &active)) continue;
    ++links;
    if (active != 0) ++active_links;
  }
  if (links == 0) return;
  setup.nvlinks = links;
  setup.active_nvlinks = active_links;
}

GpuSetup setup_of(const NvmlSession& session, nvml::Device device, int index) {
  GpuSetup setup{.index = index};
  setup.name = NvmlSession::text(session.name, device);
  int mode = 0;
  int pending = 0;
  if (session.persistence.succeeds(device, &mode)) setup.persistence = mode != 0;
  if (session.compute_mode.succeeds(device, &mode)) setup.compute_mode = static_cast<ComputeMode>(mode);
  if (session.mig.succeeds(device, &mode, &pending)) setup.mig = mode != 0;
  if (session.ecc.succeeds(device, &mode, &pending)) {
    setup.ecc = mode != 0;
    setup.ecc_pending = pending != 0;
  }
  setup.sm_clock = clock_of(session.clock, device);
  setup.most_sm_clock = clock_of(session.most_clock, device);
  setup.application_clock = clock_of(session.application_clock, device);
  setup.default_application_clock = clock_of(session.default_application_clock, device);
  setup.slowdown = slowdown_of(session, device);
  read_nvlinks(session, device, setup);
  nvml::FabricInfo fabric{};
  fabric.version = static_cast<unsigned>(sizeof fabric) | nvml::kFabricInfoVersion2;
  if (session.fabric.succeeds(device, &fabric)) setup.fabric = static_cast<FabricState>(fabric.state);
  setup.processes = processes_of(session, device);
  return setup;
}

void read_pair(const NvmlSession& session, nvml::Device first, nvml::Device second, GpuPair& pair) {
  int level = 0;
  if (session.ancestor.succeeds(first, second, &level)) pair.ancestor = static_cast<Ancestor>(level);
  int read = 0;
  int write = 0;
  if (session.peer.succeeds(first, second, nvml::kPeerRead, &read) &&
      session.peer.succeeds(first, second, nvml::kPeerWrite, &write)) {
    pair.peer_access = static_cast<PeerAccess>(std::clamp(std::max(read, write), 0, 6));
  }
  int nvlink = 0;
  if (session.peer.succeeds(first, second, nvml::kPeerNvlink, &nvlink)) pair.nvlink = nvlink == 0;
}

}  // namespace

std::string to_string(Ancestor ancestor) {
  return ancestor == Ancestor::kBoard || ancestor == Ancestor::kSwitch ? "PIX"
         : ancestor == Ancestor::kSwitches                             ? "PXB"
         : ancestor == Ancestor::kHostBridge                           ? "PHB"
         : ancestor == Ancestor::kNode                                 ? "NODE"
                                                                       : "SYS";
}

GpuSetups read_gpu_setups(const std::string& library) {
  GpuSetups setups;
  NvmlSession session(library);
  if (!session.opened() || !session.complete() || session.start() != nvml::kSuccess) return setups;
  std::array<char, nvml::kLongestText + 1> driver{};
  if (session.driver.succeeds(driver.data(), nvml::kLongestText)) setups.driver = driver.data();
  unsigned count = 0;
  if (!session.count.succeeds(&count)) return setups;
  std::vector<nvml::Device> devices;
  for (unsigned index = 0; index < count; ++index) {
    nvml::Device device = nullptr;
    if (!session.handle.succeeds(index, &device)) continue;
    setups.gpus.push_back(setup_of(session, device, static_cast<int>(index)));
    devices.push_back(device);
  }
  for (std::size_t first = 0; first < devices.size(); ++first) {
    for (std::size_t second = first + 1; second < devices.size(); ++second) {
      GpuPair pair{.first = setups.gpus[first].index, .second = setups.gpus[second].index};
      read_pair(session, devices[first], devices[second], pair);
      setups.pairs.push_back(pair);
    }
  }
  return setups;
}

}  // namespace dtrain::host
