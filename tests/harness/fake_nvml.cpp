// A stand-in for libnvidia-ml.so.1: GPUs as the file "<this library>.json" describes them, read again at each call so
// that a test can change them under a running process:
//   {"init": 0, "gpus": [{"uuid": "GPU-a", "name": "Fake", "total": 100, "free": 40, "util": 37, "temperature": 61,
//                         "pids": [12], "ecc": 0, "rows": "failed"|"pending", "pages_pending": false,
//                         "errors": {"util": 15}, "hangs": false, "slow_ms": 0}]}
// "ecc", "rows" and "pages_pending" may be left out: the GPU does not support them then; likewise "slowdown" (a
// temperature), "capability" ([9, 0]) and "throttle" (bits of reasons). "errors" gives a call's NVML
// code; "all" stands for every call. Without the file there are DTRAIN_FAKE_GPUS idle GPUs, those of
// harness/fake_gpu.h; with neither, no call works. The interface is declared here as NVIDIA documents it, not with
// dtrain's own declarations: a mistake there shows.
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
  unsigned int gpu;
  unsigned int memory;
} nvmlUtilization_t;
typedef struct {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
} nvmlProcessInfo_t;

}  // extern "C"

namespace {

constexpr nvmlReturn_t kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kInsufficientSize = 7, kUnknown = 999;

// Calls `answer` with the GPU's description, unless it has an error for `call`.
template <typename Answer>
nvmlReturn_t ask(nvmlDevice_t device, const char* call, const Answer& answer) {
  const Json all = description();
  const auto index = reinterpret_cast<std::uintptr_t>(device);  // 1 is the first
  if (all.is_discarded() || index == 0 || index > all.at("gpus").size()) return kInvalidArgument;
  const Json& gpu = all.at("gpus").at(index - 1);
  if (gpu.value("hangs", false)) std::this_thread::sleep_for(std::chrono::hours(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(gpu.value("slow_ms", 0)));
  const Json errors = gpu.value("errors", Json::object());
  if (const int code = errors.value("all", errors.value(call, 0)); code != 0) return code;
  return answer(gpu);
}

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
    for (std::size_t i = 0; i < pids.size(); ++i) infos[i] = {pids[i], 1 << 20, ~0u, ~0u};
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

}  // extern "C"
