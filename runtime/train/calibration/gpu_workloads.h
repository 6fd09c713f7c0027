// Measures a GPU with libtorch's operators. Events on its stream give the times, so nothing waits between operations.
#pragma once

#include <c10/core/Device.h>

#include "dtrain/profile/rank_limits.h"

namespace dtrain::calibration {

// Returns the figures of a GPU that open_device() has opened, without its kind. Takes about two seconds. The calling
// thread's current stream is used, and float32 products may use TF32 afterwards. c10::Error: the GPU has failed, or has
// no memory for even the smallest size.
profile::GpuLimits measure_gpu(c10::Device device);

}  // namespace dtrain::calibration
