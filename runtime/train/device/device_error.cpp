#include "device/device_error.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "device/training_device.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"

namespace dtrain::train {

namespace {

// CUDA's error codes (driver_types.h) for a device that is in use or has failed.
constexpr int kDevicesUnavailable = 46;
constexpr int kEccUncorrectable = 214;

constexpr const char* kFailedRemedy =
    "the kernel's log names the cause (dmesg | grep -i xid); a fault in the model's own kernels shows in "
    "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; if the GPU is lost, take the host out of the cluster";

// Returns "; 1.2 GiB are in tensors, 3.0 GiB are reserved for them". libtorch's own text tells how much is free.
std::string memory_text(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return {};
  try {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator->getDeviceStats(device.index());
    const auto text = [](auto bytes) { return format_bytes(static_cast<double>(bytes)); };
    return "; " + text(stats.allocated_bytes[kAll].current) + " are in tensors, " +
           text(stats.reserved_bytes[kAll].current) + " are reserved for them";
  } catch (const std::exception&) {  // a device that has failed does not answer
    return {};
  }
}

Error out_of_memory(const c10::Error& error, c10::Device device) {
  return Error("GPU " + std::to_string(device.index()) +
                   " is out of memory: " + first_line(error.what_without_backtrace()) + memory_text(device),
               "lower hyperparameters.global_batch_size, or keep it and raise optimizations.aggregation_frequency; "
               "sharded_optimizer: true divides the optimizer's state among the ranks; dtrain::checkpoint() around "
               "layers of the model computes their activations again instead of keeping them (docs/api.md); nvidia-smi "
               "shows whether another process takes memory");
}

Error failed(const c10::AcceleratorError& error, c10::Device device) {
  const std::string gpu = "GPU " + std::to_string(device.index());
  const std::string what = first_line(error.what_without_backtrace());
  const int code = error.get_error_code();
  if (code == kDevicesUnavailable) {
    return Error(gpu + " is taken by another process: " + what,
                 "nvidia-smi shows the process, and the compute mode, which may allow only one");
  }
  if (code == kEccUncorrectable) {
    return Error(gpu + " has lost data (uncorrectable ECC error): " + what,
                 "nvidia-smi -q -d ECC shows the counts; reset the GPU or take the host out of the cluster");
  }
  return Error(gpu + " has failed: " + what, kFailedRemedy);
}

}  // namespace

bool has_failed(c10::Device device) {
  if (device.is_cpu()) return false;
  try {
    current_stream(device).query();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

Error failed_device(c10::Device device, const std::string& what) {
  return Error("GPU " + std::to_string(device.index()) + " has failed: " + what, kFailedRemedy);
}

Error device_error(const c10::Error& error, c10::Device device) {
  if (device.is_cpu()) return Error(error.what_without_backtrace());
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return out_of_memory(error, device);
  if (const auto* accelerator = dynamic_cast<const c10::AcceleratorError*>(&error)) return failed(*accelerator, device);
  return Error(error.what_without_backtrace());
}

void rethrow_device_error(c10::Device device, const std::string& what) {
  try {
    throw;
  } catch (const c10::Error& error) {
    const Error explained = device_error(error, device);
    throw Error(what + ": " + explained.what(), explained.remedy());
  }
}

}  // namespace dtrain::train
