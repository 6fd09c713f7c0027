#include "device/training_device.h"

#include <dlfcn.h>

#include <filesystem>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/device_error.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"

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
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void* native_handle(const c10::Stream& stream) {
  return stream.native_handle();
}

}  // namespace dtrain::train
