// The NVIDIA GPUs of this machine, as the driver's management library (NVML) lists them. The library is opened on
// demand, so that one build runs with and without a driver. Its calls can take long, and never return if a driver
// hangs: call from a thread that may wait. One thread at a time. Which of them CUDA would show to a process is found
// without CUDA.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

namespace dtrain::host {

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// A part of a GPU in MIG mode, which CUDA shows as a GPU of its own.
struct MigInstance {
  std::string uuid;                // "MIG-…"
  std::string name;                // with its profile: "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
  int gpu = 0;                     // index of the GPU
  std::uint64_t total_memory = 0;  // bytes; 0: not reported
};

struct GpuInfo {
  int index = 0;  // NVML's: by PCI address, which is not always CUDA's order
  std::string uuid;
  std::string name;
  std::string pci_address;                     // "00000000:3B:00.0"; empty: not reported
  std::uint64_t total_memory = 0;              // bytes; 0: not reported
  std::optional<double> slowdown_temperature;  // degrees Celsius at which it begins to slow down; empty: not reported
  std::optional<double> compute_capability;    // such as 9.0; empty: not reported
  std::string problem;                         // the problem that NVML reports; empty: none
  std::vector<MigInstance> instances;          // in MIG mode; empty: it is not divided, or into nothing (a problem)
};

// A value that a GPU does not report is empty.
struct GpuReading {
  int index = 0;
  std::optional<double> util;                // percent of the driver's last sample period in which a kernel ran
  std::optional<std::uint64_t> free_memory;  // bytes
  std::optional<double> temperature;         // degrees Celsius
  std::optional<bool> slowed_by_heat;        // its clocks are lower than they could be because of its temperature
  std::optional<std::vector<pid_t>>
      processes;  // that compute on it, by their pids on the host, also from inside a container
};

class Gpus {
 public:
  // Calls `warn` once for each kind of failure. Without the library or a driver there are no GPUs, which is no error.
  explicit Gpus(const std::string& library = kNvmlLibrary, std::function<void(const std::string&)> warn = {});
  ~Gpus();
  Gpus& operator=(Gpus&&) = delete;

  const std::vector<GpuInfo>& list() const { return list_; }
  // Returns a reading for each GPU of list(), in its order.
  std::vector<GpuReading> read();

 private:
  struct Nvml;
  void find_gpus();
  // Returns false, and warns, if `code` is a failure. A function that the GPU does not support is no failure.
  bool succeeded(int code, const std::string& what);

  std::function<void(const std::string&)> warn_;
  std::set<std::string> warned_;
  std::unique_ptr<Nvml> nvml_;
  std::vector<GpuInfo> list_;
};

// A GPU that CUDA would show to a process: one of NVML's list, restricted by CUDA_VISIBLE_DEVICES.
struct VisibleGpu {
  std::string id;               // as CUDA_VISIBLE_DEVICES names it: the UUID, or the name of a MIG instance
  std::optional<GpuInfo> info;  // NVML's report; empty: it is a MIG instance
  std::optional<MigInstance> instance = {};  // NVML's report of it; empty: it is none, or NVML does not list it
  // Returns the name of the card, for an instance with its profile.
  std::string name() const;
};

// Pure function, any thread. `all`: as NVML lists them. `visible`: the value of CUDA_VISIBLE_DEVICES; empty optional:
// it is not set, and all are visible. It is read as CUDA reads it: indices, UUIDs or unique beginnings of UUIDs, and
// names of MIG instances, which need not be in NVML's list. In place of a GPU that is divided into MIG instances are
// all of these; CUDA itself would take the first of them. The first entry that names no GPU ends the list. If a GPU is
// named twice, the list is empty. Indices count in the order of `all`, as with CUDA_DEVICE_ORDER=PCI_BUS_ID.
std::vector<VisibleGpu> visible_gpus(const std::vector<GpuInfo>& all, const std::optional<std::string>& visible);

// True if CUDA may number the GPUs in another order than NVML. CUDA puts the fastest first if the GPUs differ, unless
// CUDA_DEVICE_ORDER or UUIDs determine the order.
bool is_order_unknown(const std::vector<GpuInfo>& all, const std::map<std::string, std::string>& variables);

}  // namespace dtrain::host
