// optimizations.tf32, optimizations.cudnn_benchmark and optimizations.attention.
#include <ATen/Context.h>

#include "device/training_device.h"
#include "gpus.h"

namespace dtrain::train {
namespace {

using test::kGpu;
using testing::ElementsAre;

// Whoever comes after this test finds libtorch's settings as they were.
class GpuFastPaths : public test::OnGpus {
 protected:
  void TearDown() override {
    use_fast_paths(kGpu, {});
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(true);
    context.setSDPUseMemEfficient(true);
    context.setSDPUseCuDNN(true);
    std::vector<std::int64_t> order;
    for (const at::SDPBackend backend : order_) order.push_back(static_cast<std::int64_t>(backend));
    context.setSDPPriorityOrder(order);
    test::OnGpus::TearDown();
  }

  const std::array<at::SDPBackend, at::num_sdp_backends> order_ = at::globalContext().sDPPriorityOrder();
};

// The kernels that are on, in the order in which they are tried.
std::vector<at::SDPBackend> kernels_of_attention() {
  at::Context& context = at::globalContext();
  std::vector<at::SDPBackend> kernels;
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    if ((backend == at::SDPBackend::flash_attention && context.userEnabledFlashSDP()) ||
        (backend == at::SDPBackend::efficient_attention && context.userEnabledMemEfficientSDP()) ||
        (backend == at::SDPBackend::cudnn_attention && context.userEnabledCuDNNSDP()) ||
        (backend == at::SDPBackend::math && context.userEnabledMathSDP())) {
      kernels.push_back(backend);
    }
  }
  return kernels;
}

TEST_F(GpuFastPaths, TheKernelOfAttentionThatIsTriedFirst) {
  using at::SDPBackend;
  using config::Attention;
  const auto kernels = [](Attention attention) {
    use_fast_paths(kGpu, {.attention = attention});
    return kernels_of_attention();
  };
  const auto before = kernels_of_attention();
  EXPECT_EQ(kernels(Attention::kAuto), before);
  EXPECT_THAT(kernels(Attention::kFlash),
              ElementsAre(SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::math));
  EXPECT_THAT(kernels(Attention::kEfficient), ElementsAre(SDPBackend::efficient_attention, SDPBackend::math));
  EXPECT_THAT(kernels(Attention::kMath), ElementsAre(SDPBackend::math));
  EXPECT_THAT(kernels(Attention::kCudnn), ElementsAre(SDPBackend::cudnn_attention, SDPBackend::flash_attention,
                                                      SDPBackend::efficient_attention, SDPBackend::math));
}

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
