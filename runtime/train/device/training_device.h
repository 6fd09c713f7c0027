// The device that a rank trains on, and libtorch's CUDA part, which is opened on demand: dtrain does not link it.
//
// Plain functions. open_device() comes before the first call of libtorch that asks for CUDA (torch::manual_seed() is
// one): libtorch asks once, and a library that is opened later is ignored.
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace dtrain::train {

// The CPU where `gpu` is empty. Else opens libtorch_cuda.so, as the dynamic linker finds it or beside libtorch_cpu.so,
// and makes CUDA's device of this number, among those that the process sees, current on the calling thread. ConfigError
// names what cannot be opened, or the GPUs that there are; Error where the GPU cannot be used.
c10::Device open_device(std::optional<int> gpu);

// Which precision and which algorithms a GPU may use, for the process. A CPU has no use for them: nothing happens.
struct FastPaths {
  bool tf32 = true;              // products and convolutions of float32 with inputs rounded to 10 bits (TF32)
  bool cudnn_benchmark = false;  // cuDNN's fastest algorithm, by measurement; else one that repeats its bits
};
void use_fast_paths(c10::Device device, const FastPaths& paths);

// The calling thread's current stream on a GPU, and the cudaStream_t of one.
c10::Stream current_stream(c10::Device device);
void* native_handle(const c10::Stream& stream);

}  // namespace dtrain::train
