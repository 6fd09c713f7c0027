// NVIDIA's management library (NVML), which comes with the driver: opened by its name, started, and stopped again. Its
// calls can take long, and never return if a driver hangs. One thread at a time.
#pragma once

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

using Init = int();
using Shutdown = int();
using ErrorString = const char*(int);
using DeviceGetCount = int(unsigned*);
using DeviceGetHandleByIndex = int(unsigned, Device*);
using DeviceGetText = int(Device, char*, unsigned);
using DeviceGetPciInfo = int(Device, PciInfo*);
using DeviceGetMemoryInfo = int(Device, Memory*);
using DeviceGetUtilizationRates = int(Device, Utilization*);
using DeviceGetTemperature = int(Device, int sensor, unsigned*);
using DeviceGetTemperatureThreshold = int(Device, int threshold, unsigned*);
using DeviceGetCudaComputeCapability = int(Device, int* major, int* minor);
using DeviceGetCurrentClocksThrottleReasons = int(Device, unsigned long long*);
using DeviceGetComputeRunningProcesses = int(Device, unsigned* count, ProcessInfo*);
using DeviceGetTotalEccErrors = int(Device, int type, int counter, unsigned long long*);
using DeviceGetRetiredPagesPendingStatus = int(Device, int* pending);
using DeviceGetRemappedRows = int(Device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                                  unsigned* failed);
using SystemGetText = int(char*, unsigned);
using DeviceGetMode = int(Device, int* mode);
using DeviceGetTwoModes = int(Device, int* current, int* pending);
using DeviceGetClock = int(Device, int type, unsigned* megahertz);
using DeviceGetNvLinkState = int(Device, unsigned link, int* active);
using DeviceGetGpuFabricInfoV = int(Device, FabricInfo*);
using DeviceGetTopologyCommonAncestor = int(Device, Device, int* level);
using DeviceGetP2PStatus = int(Device, Device, int capability, int* status);

}  // namespace nvml

class NvmlSession {
 public:
  // Opens the library; without it opened() is false, and nothing else may be called.
  explicit NvmlSession(const std::string& library) : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~NvmlSession() {
    if (started_ && shutdown_) shutdown_();
  }
  NvmlSession& operator=(NvmlSession&&) = delete;

  bool opened() const { return library_ != nullptr; }
  // True if the library has the functions that count() and handle() need.
  bool complete() const { return init_ && count_ && handle_; }
  // These functions return NVML's codes: nvml::kSuccess, or one that text() describes.
  int start() {
    const int code = init_();
    started_ = code == nvml::kSuccess;
    return code;
  }
  int count(unsigned* count) const { return count_(count); }
  int handle(unsigned index, nvml::Device* device) const { return handle_(index, device); }
  std::string text(int code) const {
    const char* const reason = error_string_ ? error_string_(code) : nullptr;
    return reason ? reason : "NVML error " + std::to_string(code);
  }

  // A function of the library as a pointer of its type; null without the library, and if this version of it lacks it.
  struct Found {
    template <typename Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
    void* address;
  };
  Found find(const char* name) const { return {library_ ? ::dlsym(library_.get(), name) : nullptr}; }

 private:
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };

  std::unique_ptr<void, Close> library_;
  bool started_ = false;
  nvml::Init* init_ = find("nvmlInit_v2");
  nvml::Shutdown* shutdown_ = find("nvmlShutdown");
  nvml::ErrorString* error_string_ = find("nvmlErrorString");
  nvml::DeviceGetCount* count_ = find("nvmlDeviceGetCount_v2");
  nvml::DeviceGetHandleByIndex* handle_ = find("nvmlDeviceGetHandleByIndex_v2");
};

// Lists all processes that compute on a GPU. Returns NVML's code.
inline int running_processes(nvml::DeviceGetComputeRunningProcesses& call, nvml::Device device,
                             std::vector<nvml::ProcessInfo>& processes) {
  processes.resize(64);
  auto count = static_cast<unsigned>(processes.size());
  int code = call(device, &count, processes.data());
  if (code == nvml::kInsufficientSize) {
    processes.resize(count + 64);  // more processes may start meanwhile
    count = static_cast<unsigned>(processes.size());
    code = call(device, &count, processes.data());
  }
  if (count < processes.size()) processes.resize(count);
  return code;
}

}  // namespace dtrain::host
