// The limits of a GPU, measured on a fake one: its speed means nothing, its waits and its memory do.
#include <chrono>

#include "calibration/gpu_workloads.h"
#include "device/training_device.h"
#include "gpus.h"

namespace dtrain::calibration {
namespace {

using test::gpus;
using test::kGpu;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

class GpuLimitsTest : public test::OnGpus {
 protected:
  void TearDown() override {
    train::use_fast_paths(kGpu, {});
    test::OnGpus::TearDown();
  }
};

TEST_F(GpuLimitsTest, AreAllMeasuredInSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const profile::GpuLimits limits = measure_gpu(kGpu);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));  // on a busy machine
  EXPECT_THAT(limits.gflops, ElementsAre(Pair("bfloat16", testing::Gt(0)), Pair("float16", testing::Gt(0)),
                                         Pair("float32", testing::Gt(0)), Pair("tf32", testing::Gt(0))));
  EXPECT_THAT(limits.host_copy_gb_s,
              ElementsAre(Pair("from_gpu", testing::Gt(0)), Pair("from_gpu_pageable", testing::Gt(0)),
                          Pair("to_gpu", testing::Gt(0)), Pair("to_gpu_pageable", testing::Gt(0))));
  EXPECT_GT(limits.memory_read_gb_s.value(), 0);
  EXPECT_GT(limits.memory_copy_gb_s.value(), 0);
  EXPECT_GT(limits.launch_us.value(), 0);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuLimitsTest, LaunchesDoNotWaitForTheGpu) {
  measure_gpu(kGpu);
  const test::FakeGpuCounts counts = gpus.take_counts();
  EXPECT_GT(counts.kernels, 3 * 500);
  EXPECT_LT(counts.host_syncs, counts.kernels / 2);
  EXPECT_EQ(counts.scalar_reads, 0);
}

TEST_F(GpuLimitsTest, AGpuWithoutMemoryCannotBeMeasured) {
  gpus.fail_allocation(1);
  EXPECT_THROW(measure_gpu(kGpu), c10::OutOfMemoryError);
}

}  // namespace
}  // namespace dtrain::calibration
