// NVIDIA's management library (NVML), which comes with the driver: opened by its name, started, and stopped again. Its
// calls can take long, and never return if a driver hangs. One thread at a time.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace dtrain::host {

// The part of NVML's binary interface that dtrain calls. The library comes with the driver and keeps this interface
// over its versions; its header comes with CUDA, which a build needs not have.
namespace nvml {

inline constexpr int kSuccess = 0;
inline constexpr int kNotSupported = 3;
inline constexpr int kInsufficientSize = 7;
inline constexpr int kDriverNotLoaded = 9;
inline constexpr int kTemperatureOfGpu = 0;
inline constexpr int kSlowdownThreshold = 1;
inline constexpr unsigned long long kSlowedByHeat = 0x20 | 0x40;  // by the driver, by the hardware
inline constexpr int kUncorrectedErrors = 1;
inline constexpr int kSinceDriverStart = 0;
inline constexpr unsigned kLongestText = 96;      // of names and UUIDs
inline constexpr unsigned long long kIdle = 0x1;  // reasons for lower clocks
inline constexpr unsigned long long kApplicationClocks = 0x2;
inline constexpr unsigned long long kPowerLimit = 0x4;
inline constexpr unsigned long long kHardwareSlowdown = 0x8;
inline constexpr unsigned long long kPowerBrake = 0x80;
inline constexpr int kSmClock = 1;
inline constexpr int kPeerRead = 0;  // capabilities of a pair of GPUs
inline constexpr int kPeerWrite = 1;
inline constexpr int kPeerNvlink = 2;
inline constexpr unsigned kMostNvlinks = 36;               // of a GPU
inline constexpr unsigned kFabricInfoVersion2 = 2u << 24;  // combined with the size of FabricInfo
inline constexpr unsigned long long kNotAvailable = ~0ull;

using Device = struct DeviceOfNvml*;

struct Memory {
  unsigned long long total, free, used;  // bytes
};
struct Utilization {
  unsigned gpu, memory;  // percent of time
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};
struct FabricInfo {  // version 2
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};

struct PciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};

// The place of a function in the library; null without the library, and if this version of it lacks the function.
struct Found {
  template <typename Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(address);
  }
  void* address;
};

template <typename... Arguments>
class Function {
 public:
  Function(Found found) : call_(found) {}
  explicit operator bool() const { return call_ != nullptr; }
  // Returns NVML's code.
  int operator()(Arguments... arguments) const { return call_(arguments...); }
  // False: the function fails, or the library lacks it.
  bool succeeds(Arguments... arguments) const { return call_ && call_(arguments...) == kSuccess; }

 private:
  int (*call_)(Arguments...);
};

using DeviceText = Function<Device, char*, unsigned>;
using DeviceMode = Function<Device, int*>;
using DeviceTwoModes = Function<Device, int* /*current*/, int* /*pending*/>;
using DeviceClock = Function<Device, int /*type*/, unsigned* /*megahertz*/>;
using DeviceReasons = Function<Device, unsigned long long*>;

}  // namespace nvml

class NvmlSession {
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  std::unique_ptr<void, Close> library_;
  bool started_ = false;

  nvml::Found find(const char* name) const { return {library_ ? ::dlsym(library_.get(), name) : nullptr}; }

 public:
  // Opens the library; without it opened() is false, and nothing else may be called.
  explicit NvmlSession(const std::string& library) : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~NvmlSession() {
    if (started_ && shutdown) shutdown();
  }
  NvmlSession& operator=(NvmlSession&&) = delete;

  bool opened() const { return library_ != nullptr; }
  // True if the library has the functions that every caller needs.
  bool complete() const { return init && count && handle; }
  // Returns NVML's code: nvml::kSuccess, or one that text() describes.
  int start() {
    const int code = init();
    started_ = code == nvml::kSuccess;
    return code;
  }
  std::string text(int code) const {
    const char* const reason = error_string ? error_string(code) : nullptr;
    return reason ? reason : "NVML error " + std::to_string(code);
  }
  // Empty: the function fails.
  static std::string text(const nvml::DeviceText& get, nvml::Device device) {
    std::array<char, nvml::kLongestText + 1> buffer{};
    return get.succeeds(device, buffer.data(), nvml::kLongestText) ? buffer.data() : std::string();
  }
  // Lists all processes that compute on a GPU. Returns NVML's code.
  int list_processes(nvml::Device device, std::vector<nvml::ProcessInfo>& list) const {
    list.resize(64);
    auto listed = static_cast<unsigned>(list.size());
    int code = processes(device, &listed, list.data());
    if (code == nvml::kInsufficientSize) {
      list.resize(listed + 64);  // more processes may start meanwhile
      listed = static_cast<unsigned>(list.size());
      code = processes(device, &listed, list.data());
    }
    if (listed < list.size()) list.resize(listed);
    return code;
  }

  nvml::Function<> init = find("nvmlInit_v2");
  nvml::Function<> shutdown = find("nvmlShutdown");
  const char* (*error_string)(int) = find("nvmlErrorString");
  nvml::Function<unsigned*> count = find("nvmlDeviceGetCount_v2");
  nvml::Function<unsigned, nvml::Device*> handle = find("nvmlDeviceGetHandleByIndex_v2");
  nvml::Function<char*, unsigned> driver = find("nvmlSystemGetDriverVersion");
  nvml::DeviceText uuid = find("nvmlDeviceGetUUID");
  nvml::DeviceText name = find("nvmlDeviceGetName");
  nvml::Function<nvml::Device, nvml::PciInfo*> pci = find("nvmlDeviceGetPciInfo_v3");
  nvml::Function<nvml::Device, nvml::Memory*> memory = find("nvmlDeviceGetMemoryInfo");
  nvml::Function<nvml::Device, nvml::Utilization*> utilization = find("nvmlDeviceGetUtilizationRates");
  nvml::Function<nvml::Device, int /*sensor*/, unsigned*> temperature = find("nvmlDeviceGetTemperature");
  nvml::Function<nvml::Device, int, unsigned*> temperature_threshold = find("nvmlDeviceGetTemperatureThreshold");
  nvml::DeviceTwoModes compute_capability = find("nvmlDeviceGetCudaComputeCapability");  // major, minor
  nvml::DeviceReasons slowdown = find("nvmlDeviceGetCurrentClocksThrottleReasons");
  nvml::DeviceReasons slowdown_renamed = find("nvmlDeviceGetCurrentClocksEventReasons");  // the name that CUDA 14 keeps
  nvml::Function<nvml::Device, unsigned* /*count*/, nvml::ProcessInfo*> processes =
      find("nvmlDeviceGetComputeRunningProcesses_v3");
  nvml::Function<nvml::Device, int /*type*/, int /*counter*/, unsigned long long*> ecc_errors =
      find("nvmlDeviceGetTotalEccErrors");
  nvml::DeviceMode pages_pending = find("nvmlDeviceGetRetiredPagesPendingStatus");
  nvml::Function<nvml::Device, unsigned* /*corrected*/, unsigned* /*uncorrected*/, unsigned* /*pending*/,
                 unsigned* /*failed*/>
      remapped_rows = find("nvmlDeviceGetRemappedRows");
  nvml::DeviceMode persistence = find("nvmlDeviceGetPersistenceMode");
  nvml::DeviceMode compute_mode = find("nvmlDeviceGetComputeMode");
  nvml::DeviceTwoModes mig = find("nvmlDeviceGetMigMode");
  nvml::Function<nvml::Device, unsigned* /*count*/> most_instances = find("nvmlDeviceGetMaxMigDeviceCount");
  nvml::Function<nvml::Device, unsigned /*place*/, nvml::Device*> instance =
      find("nvmlDeviceGetMigDeviceHandleByIndex");
  nvml::DeviceTwoModes ecc = find("nvmlDeviceGetEccMode");
  nvml::DeviceClock clock = find("nvmlDeviceGetClockInfo");
  nvml::DeviceClock most_clock = find("nvmlDeviceGetMaxClockInfo");
  nvml::DeviceClock application_clock = find("nvmlDeviceGetApplicationsClock");
  nvml::DeviceClock default_application_clock = find("nvmlDeviceGetDefaultApplicationsClock");
  nvml::Function<nvml::Device, unsigned /*link*/, int* /*active*/> nvlink = find("nvmlDeviceGetNvLinkState");
  nvml::Function<nvml::Device, nvml::FabricInfo*> fabric = find("nvmlDeviceGetGpuFabricInfoV");
  nvml::Function<nvml::Device, nvml::Device, int* /*level*/> ancestor = find("nvmlDeviceGetTopologyCommonAncestor");
  nvml::Function<nvml::Device, nvml::Device, int /*capability*/, int* /*status*/> peer = find("nvmlDeviceGetP2PStatus");
};

}  // namespace dtrain::host
