#include "device/training_device.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"

namespace dtrain::train {
namespace {

constexpr const char* kCudaLibrary = "libtorch_cuda.so";

void open_cuda_library() {
  if (::dlopen(kCudaLibrary, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  std::string why = ::dlerror();
  const auto beside = library_folder(reinterpret_cast<const void*>(&at::get_num_threads)) / kCudaLibrary;
  std::error_code code;
  if (std::filesystem::exists(beside, code)) {
    if (::dlopen(beside.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
    why = ::dlerror();
  }
  throw ConfigError("training on a GPU needs libtorch's CUDA part, which cannot be opened: " + why,
                    "get it with: dtrain-get-libtorch --flavour full; or train on CPUs with resources.slot_type: cpu");
}

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

// Some versions of libtorch put cuDNN first by themselves, at the first attention. So a kernel is certain to come first
// if those before it are off, but for cuDNN.
void prefer_attention(at::Context& context, config::Attention wanted) {
  using config::Attention;
  using Backend = at::SDPBackend;
  if (wanted == Attention::kAuto) return;
  context.setSDPUseCuDNN(wanted == Attention::kCudnn);
  context.setSDPUseFlash(wanted == Attention::kCudnn || wanted == Attention::kFlash);
  context.setSDPUseMemEfficient(wanted != Attention::kMath);
  std::vector<std::int64_t> order;
  for (const Backend backend :
       {Backend::cudnn_attention, Backend::flash_attention, Backend::efficient_attention, Backend::math}) {
    order.push_back(static_cast<std::int64_t>(backend));
  }
  context.setSDPPriorityOrder(order);
}

}  // namespace

c10::Device open_device(std::optional<int> gpu) {
  if (!gpu) return at::kCPU;
  open_cuda_library();
  const bool registered = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  const int count = registered ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() : 0;
  if (*gpu < 0 || *gpu >= count) {
    throw ConfigError("this rank is to train on GPU " + std::to_string(*gpu) + ", but CUDA finds " +
                          (count == 0 ? std::string("no GPU") : std::to_string(count) + " GPUs"),
                      "look at CUDA_VISIBLE_DEVICES and at what `dtrain doctor` says of the driver");
  }
  const c10::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(*gpu));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  try {
    at::empty({1}, at::TensorOptions().device(device));  // the first allocation creates the context
  } catch (const c10::Error&) {
    rethrow_device_error(device, "this rank cannot use its GPU");
  }
  return device;
}

void use_fast_paths(c10::Device device, const FastPaths& paths) {
  if (device.is_cpu()) return;
  at::Context& context = at::globalContext();
  // These older settings are used, not setFloat32Precision(): libtorch's kernels check that both agree.
  context.setAllowTF32CuBLAS(paths.tf32);
  context.setAllowTF32CuDNN(paths.tf32);
  context.setBenchmarkCuDNN(paths.cudnn_benchmark);
  context.setDeterministicCuDNN(!paths.cudnn_benchmark);
  prefer_attention(context, paths.attention);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void* native_handle(const c10::Stream& stream) {
  return stream.native_handle();
}

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
