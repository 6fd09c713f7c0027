// Opens the device that a rank trains on, and libtorch's CUDA part on demand: dtrain does not link it.
//
// Plain functions. open_device() comes before the first call of libtorch that asks for CUDA (torch::manual_seed() is
// one): libtorch asks only once and ignores a library that is opened later.
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include "dtrain/base/error.h"
#include "dtrain/config/optimizations.h"

namespace dtrain::train {

// Returns the CPU if `gpu` is empty. Otherwise opens libtorch_cuda.so, which the dynamic linker finds or which lies
// beside libtorch_cpu.so, and makes device `gpu`, among the devices visible to the process, current on the calling
// thread. ConfigError names the library that cannot be opened, or the number of GPUs; Error if the GPU cannot be used.
c10::Device open_device(std::optional<int> gpu);

// The precision and the algorithms that a GPU may use, for the process. They have no effect on a CPU.
struct FastPaths {
  bool tf32 = true;              // float32 products and convolutions round inputs to 10 bits (TF32)
  bool cudnn_benchmark = false;  // cuDNN's fastest algorithm, by measurement; else a deterministic one
  config::Attention attention = config::Attention::kAuto;  // auto leaves libtorch's settings as they are
};
void use_fast_paths(c10::Device device, const FastPaths& paths);

// Return the calling thread's current stream on a GPU, and the cudaStream_t of a stream.
c10::Stream current_stream(c10::Device device);
void* native_handle(const c10::Stream& stream);

// Explains libtorch's errors about a GPU to the user: out of memory, failed, or in use. Plain functions.

// Returns `error` in words for users, without libtorch's stack. An error about a GPU has the requested and the free
// memory, and a remedy.
Error device_error(const c10::Error& error, c10::Device device);

// True if a GPU has failed for this process, so that all its operations fail. False for the CPU.
bool has_failed(c10::Device device);
// Returns the error of a failed GPU. `what`: the message of the operation that used it.
Error failed_device(c10::Device device, const std::string& what);

// Throws device_error() of the c10::Error that is being handled, with "`what`: " before its message.
[[noreturn]] void rethrow_device_error(c10::Device device, const std::string& what);

}  // namespace dtrain::train
