// How do functions of the CUDA runtime and of NCCL end, which are C and return codes?
#pragma once

#include <mutex>

#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#include "machine.h"

namespace dtrain::test::fake_gpu {

// The calling thread's last error, until it is asked for.
inline thread_local cudaError_t last_cuda_error = cudaSuccess;

inline cudaError_t failed(cudaError_t error) {
  last_cuda_error = error;
  return error;
}

// Calls f() with the machine's mutex held. f returns a code, or throws what the rest of the library throws.
template <typename F>
cudaError_t cuda_call(const F& f) noexcept {
  try {
    const std::scoped_lock lock(machine().mutex);
    const cudaError_t error = f();
    return error == cudaSuccess || error == cudaErrorNotReady ? error : failed(error);
  } catch (const c10::AcceleratorError& error) {
    return failed(static_cast<cudaError_t>(error.get_error_code()));
  } catch (const c10::OutOfMemoryError&) {
    return failed(cudaErrorMemoryAllocation);
  } catch (const std::exception& error) {
    machine().report.add(error.what());
    return failed(cudaErrorUnknown);
  }
}

}  // namespace dtrain::test::fake_gpu
