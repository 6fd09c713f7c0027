// Measures NCCL between the GPUs of this host, with a process for each.
#pragma once

#include "dtrain/profile/rank_limits.h"

namespace dtrain::calibration {

// Measures the first `gpus` visible GPUs, at least two. Takes seconds. The calling process must have one thread, and
// must not have used libtorch. Error: a process that measures has failed; it has said why.
profile::GpuExchange measure_exchange(int gpus);

}  // namespace dtrain::calibration
