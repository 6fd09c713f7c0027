// A stand-in for libnvidia-ml.so.1: GPUs as the file "<this library>.json" describes them, read again at each call so
// that a test can change them under a running process:
//   {"init": 0, "gpus": [{"uuid": "GPU-a", "name": "Fake", "total": 100, "free": 40, "util": 37, "temperature": 61,
//                         "pids": [12], "ecc": 0, "rows": "failed"|"pending", "pages_pending": false,
//                         "errors": {"util": 15}, "hangs": false, "slow_ms": 0}]}
// "ecc", "rows" and "pages_pending" may be left out: the GPU does not support them then; likewise "slowdown" (a
// temperature), "pci" (an address), "capability" ([9, 0]) and "throttle" (bits of reasons); how it is set up:
// "persistence" (true), "compute_mode" (3), "mig" ([1, 1]: now, pending), "instances" ([{"uuid": "MIG-a", "name":
// "Fake MIG 1g.10gb", "total": 10, "free": 4}]), "ecc_mode" ([1, 0]), "clocks" ({"sm": 345,
// "max_sm": 1980, "application": 1980, "default_application": 1980}), "links" ([1, 1, 0]: whether each NVLink is
// active), "fabric" (3), "used" (bytes of each process). "errors" gives a call's NVML code; "all" stands for every
// call. Beside "gpus" there may be "driver" ("580.65.06") and "pairs" ({"0-1": {"ancestor": 20, "read": 0, "write": 0,
// "nvlink": 5}}). Without the file there are DTRAIN_FAKE_GPUS idle GPUs, those of harness/fake_gpu.h; with neither, no
// call works. Built with FAKE_NVML_OLD it has only the functions that all drivers have. The interface is declared
// here as NVIDIA documents it, not with dtrain's own declarations: a mistake there shows.
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "harness/fake_gpu_names.h"

namespace {

using Json = nlohmann::json;

Json idle_gpus(int count) {
  const char* const mib = std::getenv("DTRAIN_FAKE_GPU_MIB");
  const std::uint64_t bytes = std::uint64_t(mib == nullptr ? 4096 : std::atoi(mib)) << 20;
  Json gpus = Json::array();
  for (int gpu = 0; gpu < count; ++gpu) {
    gpus.push_back({{"uuid", dtrain::test::fake_gpu_uuid(gpu)},
                    {"name", dtrain::test::fake_gpu_name()},
                    {"total", bytes},
                    {"free", bytes},
                    {"util", 0},
                    {"temperature", 40},
                    {"capability", {9, 0}},
                    {"pids", Json::array()}});
  }
  return {{"gpus", gpus}};
}

Json description() {
  static const char inside = 0;
  Dl_info info{};
  ::dladdr(&inside, &info);
  std::ifstream file(std::string(info.dli_fname) + ".json");
  if (const char* const gpus = std::getenv("DTRAIN_FAKE_GPUS"); !file && gpus != nullptr)
    return idle_gpus(std::atoi(gpus));
  return Json::parse(file, nullptr, false);
}

}  // namespace

extern "C" {

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st* nvmlDevice_t;
typedef struct {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_t;
typedef struct {
  char busIdLegacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;
typedef struct {
  unsigned int gpu;
  unsigned int memory;
} nvmlUtilization_t;
typedef struct {
  unsigned int version;
  unsigned char clusterUuid[16];
  nvmlReturn_t status;
  unsigned int cliqueId;
  unsigned char state;
  unsigned int healthMask;
} nvmlGpuFabricInfo_v2_t;
typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
} nvmlProcessInfo_t;

}  // extern "C"

namespace {

constexpr nvmlReturn_t kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kInsufficientSize = 7,
                       kVersionMismatch = 25, kUnknown = 999, kNotFound = 6;
constexpr std::uintptr_t kInstances = 1000;  // a MIG instance is its GPU, plus this times its place

// Calls `answer` with the GPU's description, unless it has an error for `call`.
template <typename Answer>
nvmlReturn_t ask(nvmlDevice_t device, const char* call, const Answer& answer) {
  const Json all = description();
  const auto index = reinterpret_cast<std::uintptr_t>(device) % kInstances;  // 1 is the first
  const auto place = reinterpret_cast<std::uintptr_t>(device) / kInstances;  // of a MIG instance, from 1; 0: a GPU
  if (all.is_discarded() || index == 0 || index > all.at("gpus").size()) return kInvalidArgument;
  const Json& card = all.at("gpus").at(index - 1);
  if (place > card.value("instances", Json::array()).size()) return kNotFound;
  const Json& gpu = place == 0 ? card : card.at("instances").at(place - 1);
  if (gpu.value("hangs", false)) std::this_thread::sleep_for(std::chrono::hours(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(gpu.value("slow_ms", 0)));
  const Json errors = gpu.value("errors", Json::object());
  if (const int code = errors.value("all", errors.value(call, 0)); code != 0) return code;
  return answer(gpu);
}

#ifndef FAKE_NVML_OLD
template <typename Value>
nvmlReturn_t fact(nvmlDevice_t device, const char* call, const char* key, Value* value) {
  return ask(device, call, [&](const Json& gpu) {
    if (!gpu.contains(key)) return kNotSupported;
    *value = gpu.at(key).get<Value>();
    return kSuccess;
  });
}

nvmlReturn_t two_facts(nvmlDevice_t device, const char* call, const char* key, unsigned int* current,
                       unsigned int* pending) {
  return ask(device, call, [&](const Json& gpu) {
    if (!gpu.contains(key)) return kNotSupported;
    *current = gpu.at(key).at(0);
    *pending = gpu.at(key).at(1);
    return kSuccess;
  });
}

nvmlReturn_t clock(nvmlDevice_t device, unsigned int type, const char* key, unsigned int* megahertz) {
  if (type != 1) return kInvalidArgument;  // 1: SM
  return ask(device, "clocks", [&](const Json& gpu) {
    if (!gpu.contains("clocks") || !gpu.at("clocks").contains(key)) return kNotSupported;
    *megahertz = gpu.at("clocks").at(key);
    return kSuccess;
  });
}

// What "pairs" has about two GPUs.
nvmlReturn_t of_pair(nvmlDevice_t first, nvmlDevice_t second, const char* key, unsigned int* value) {
  const std::string name = std::to_string(reinterpret_cast<std::uintptr_t>(first) - 1) + "-" +
                           std::to_string(reinterpret_cast<std::uintptr_t>(second) - 1);
  const Json pair = description().value("pairs", Json::object()).value(name, Json::object());
  if (!pair.contains(key)) return kNotSupported;
  *value = pair.at(key);
  return kSuccess;
}
#endif

nvmlReturn_t copy(const std::string& text, char* buffer, unsigned int length) {
  if (text.size() >= length) return kInsufficientSize;
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  return kSuccess;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2() {
  const Json all = description();
  return all.is_object() ? all.value("init", 0) : kUnknown;
}

nvmlReturn_t nvmlShutdown() {
  return kSuccess;
}

const char* nvmlErrorString(nvmlReturn_t code) {
  switch (code) {
    case 15:
      return "GPU is lost";
    case 18:
      return "Driver/library version mismatch";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(description().at("gpus").size());
  return kSuccess;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  *device = reinterpret_cast<nvmlDevice_t>(static_cast<std::uintptr_t>(index) + 1);
  return ask(*device, "handle", [](const Json&) { return kSuccess; });
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  return ask(device, "uuid", [&](const Json& gpu) { return copy(gpu.at("uuid"), uuid, length); });
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  return ask(device, "name", [&](const Json& gpu) { return copy(gpu.at("name"), name, length); });
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return ask(device, "pci", [&](const Json& gpu) {
    if (!gpu.contains("pci")) return kNotSupported;
    *pci = {};
    return copy(gpu.at("pci"), pci->busId, sizeof pci->busId);
  });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return ask(device, "memory", [&](const Json& gpu) {
    const std::uint64_t total = gpu.at("total");
    const std::uint64_t free = gpu.at("free");
    *memory = {total, free, total - free};
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  return ask(device, "util", [&](const Json& gpu) {
    *utilization = {gpu.at("util"), 3};
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int* degrees) {
  if (sensor != 0) return kInvalidArgument;
  return ask(device, "temperature", [&](const Json& gpu) {
    *degrees = gpu.at("temperature");
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int threshold, unsigned int* degrees) {
  if (threshold != 1) return kInvalidArgument;  // 0: shutdown, 1: slowdown
  return ask(device, "slowdown", [&](const Json& gpu) {
    if (!gpu.contains("slowdown")) return kNotSupported;
    *degrees = gpu.at("slowdown");
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return ask(device, "capability", [&](const Json& gpu) {
    if (!gpu.contains("capability")) return kNotSupported;
    *major = gpu.at("capability").at(0);
    *minor = gpu.at("capability").at(1);
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return ask(device, "throttle", [&](const Json& gpu) {
    if (!gpu.contains("throttle")) return kNotSupported;
    *reasons = gpu.at("throttle");
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  return ask(device, "processes", [&](const Json& gpu) {
    const Json& pids = gpu.at("pids");
    const unsigned int room = *count;
    *count = static_cast<unsigned int>(pids.size());
    if (room < pids.size()) return kInsufficientSize;
    for (std::size_t i = 0; i < pids.size(); ++i) infos[i] = {pids[i], gpu.value("used", 1ull << 20), ~0u, ~0u};
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int errorType, int counterType,
                                         unsigned long long* eccCounts) {
  if (errorType != 1 || counterType != 0) return kInvalidArgument;
  return ask(device, "ecc", [&](const Json& gpu) {
    if (!gpu.contains("ecc")) return kNotSupported;
    *eccCounts = gpu.at("ecc");
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, int* isPending) {
  return ask(device, "pages", [&](const Json& gpu) {
    if (!gpu.contains("pages_pending")) return kNotSupported;
    *isPending = gpu.at("pages_pending").get<bool>() ? 1 : 0;
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int* corrRows, unsigned int* uncRows,
                                       unsigned int* isPending, unsigned int* failureOccurred) {
  return ask(device, "rows", [&](const Json& gpu) {
    const std::string rows = gpu.value("rows", "");
    if (rows.empty()) return kNotSupported;
    *corrRows = *uncRows = 1;
    *isPending = rows == "pending" ? 1 : 0;
    *failureOccurred = rows == "failed" ? 1 : 0;
    return kSuccess;
  });
}

#ifndef FAKE_NVML_OLD
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  const Json all = description();
  return all.contains("driver") ? copy(all.at("driver"), version, length) : kUnknown;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int* mode) {
  bool on = false;
  const nvmlReturn_t code = fact(device, "persistence", "persistence", &on);
  *mode = on ? 1 : 0;
  return code;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int* mode) {
  return fact(device, "compute_mode", "compute_mode", mode);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* currentMode, unsigned int* pendingMode) {
  return two_facts(device, "mig", "mig", currentMode, pendingMode);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  *count = 7;
  return ask(device, "mig", [](const Json&) { return kSuccess; });
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t* migDevice) {
  *migDevice = reinterpret_cast<nvmlDevice_t>(reinterpret_cast<std::uintptr_t>(device) + (index + 1) * kInstances);
  return ask(*migDevice, "mig", [](const Json&) { return kSuccess; });
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int* current, unsigned int* pending) {
  return two_facts(device, "ecc_mode", "ecc_mode", current, pending);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int* megahertz) {
  return clock(device, type, "sm", megahertz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int* megahertz) {
  return clock(device, type, "max_sm", megahertz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int* megahertz) {
  return clock(device, type, "application", megahertz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int* megahertz) {
  return clock(device, type, "default_application", megahertz);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int* isActive) {
  return ask(device, "links", [&](const Json& gpu) {
    const Json links = gpu.value("links", Json::array());
    if (link >= links.size()) return links.empty() ? kNotSupported : kInvalidArgument;
    *isActive = links.at(link);
    return kSuccess;
  });
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t* info) {
  if (info->version != (sizeof(nvmlGpuFabricInfo_v2_t) | 2u << 24)) return kVersionMismatch;
  return fact(device, "fabric", "fabric", &info->state);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned int* level) {
  return of_pair(first, second, "ancestor", level);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned int index, unsigned int* status) {
  static constexpr const char* kNames[] = {"read", "write", "nvlink"};
  return index < 3 ? of_pair(first, second, kNames[index], status) : kInvalidArgument;
}
#endif

}  // extern "C"
