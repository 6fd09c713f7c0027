// The fake GPUs for tests of dtrain's own kernels, which are skipped in a build without nvcc.
#pragma once

#include "device/device_kernels.h"
#include "gpus.h"

namespace dtrain::test {

class GpuWithKernels : public OnGpus {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
#ifdef DTRAIN_HAS_CUDA_KERNELS
    ASSERT_EQ(train::why_no_device_kernels(), "");
#else
    GTEST_SKIP() << "built without nvcc";
#endif
    at::manual_seed(17);
  }
};

}  // namespace dtrain::test
