// optimizations.tf32 and optimizations.cudnn_benchmark.
#include <ATen/Context.h>

#include "device/training_device.h"
#include "gpus.h"

namespace dtrain::train {
namespace {

using test::kGpu;

// Whoever comes after this test finds libtorch's settings as they were.
class GpuFastPaths : public test::OnGpus {
 protected:
  void TearDown() override {
    use_fast_paths(kGpu, {});
    test::OnGpus::TearDown();
  }
};

TEST_F(GpuFastPaths, AreWhatTheKeysSay) {
  at::Context& context = at::globalContext();
  for (const bool tf32 : {false, true}) {
    for (const bool benchmark : {true, false}) {
      use_fast_paths(kGpu, {tf32, benchmark});
      EXPECT_EQ(context.allowTF32CuBLAS(), tf32);
      EXPECT_EQ(context.allowTF32CuDNN(), tf32);
      EXPECT_EQ(context.benchmarkCuDNN(), benchmark);
      EXPECT_EQ(context.deterministicCuDNN(), !benchmark);
    }
  }
}

TEST_F(GpuFastPaths, LeaveCpusAlone) {
  at::Context& context = at::globalContext();
  use_fast_paths(kGpu, {false, true});
  use_fast_paths(at::kCPU, {true, false});
  EXPECT_FALSE(context.allowTF32CuBLAS());
  EXPECT_TRUE(context.benchmarkCuDNN());
  const at::Tensor a = torch::randn({64, 64}), b = torch::randn({64, 64});
  const at::Tensor product = a.matmul(b);
  use_fast_paths(kGpu, {true, false});
  EXPECT_TRUE(torch::equal(a.matmul(b), product));
}

}  // namespace
}  // namespace dtrain::train
