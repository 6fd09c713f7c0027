// Cross entropy on GPUs that are not there: by dtrain's kernels, as training calls them, against libtorch's operators.
#include <ATen/autocast_mode.h>

#include "gpu_with_kernels.h"
#include "model/precision.h"
#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

using test::gpus;
using test::kGpu;
using testing::IsEmpty;

constexpr std::int64_t kIgnored = -100;

class GpuCrossEntropy : public test::GpuWithKernels {
 protected:
  void SetUp() override {
    GpuWithKernels::SetUp();
    if (!IsSkipped()) use_own_operators();
  }
};

at::Tensor some_targets(std::int64_t rows, std::int64_t classes) {
  const at::Tensor targets = at::randint(classes, {rows}, at::kLong);
  targets[1] = kIgnored;
  return targets;
}

struct LossAndGradient {
  at::Tensor loss, gradient;
};
LossAndGradient compute(const at::Tensor& values, const at::Tensor& target, std::int64_t reduction, double smoothing) {
  const at::Tensor scores = values.detach().clone().requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(scores, target, {}, reduction, kIgnored, smoothing);
  (loss * 3).sum().backward();
  return {loss.detach().cpu(), scores.grad().cpu()};
}

TEST_F(GpuCrossEntropy, IsThatOfFloat64) {
  for (const std::int64_t classes : {2, 33, 1000}) {
    const at::Tensor values = at::randn({6, classes}, at::kFloat) * 4, target = some_targets(6, classes);
    for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
      for (const double smoothing : {0.0, 0.1}) {
        SCOPED_TRACE(testing::Message() << classes << " classes, reduction " << reduction << ", " << smoothing);
        const auto expected = compute(values.to(at::kDouble), target, reduction, smoothing);
        gpus.take_counts();
        const auto found = compute(values.to(kGpu), target.to(kGpu), reduction, smoothing);
        EXPECT_EQ(gpus.take_counts().scalar_reads, 0);
        EXPECT_EQ(found.loss.scalar_type(), at::kFloat);
        EXPECT_TRUE(at::allclose(found.loss.to(at::kDouble), expected.loss, 1e-5, 1e-6));
        EXPECT_TRUE(at::allclose(found.gradient.to(at::kDouble), expected.gradient, 1e-5, 1e-6));
      }
    }
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuCrossEntropy, TakesBfloat16UnderAutocast) {
  const at::Tensor values = at::randn({5, 300}, at::kFloat).to(at::kBFloat16), target = some_targets(5, 300);
  const auto expected = compute(values.to(at::kDouble), target, at::Reduction::Mean, 0);
  const at::Tensor on_gpu = values.to(kGpu), target_on_gpu = target.to(kGpu);
  const Autocast autocast(at::kBFloat16, kGpu);
  const auto found = compute(on_gpu, target_on_gpu, at::Reduction::Mean, 0);
  EXPECT_EQ(found.loss.scalar_type(), at::kFloat);
  EXPECT_EQ(found.gradient.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(found.loss.to(at::kDouble), expected.loss, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(found.gradient.to(at::kDouble), expected.gradient, 4e-3, 1e-6));
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuCrossEntropy, TheScoresAreReadTwiceByTwoKernels) {
  const at::Tensor scores = at::randn({8, 100}, at::kFloat).to(kGpu).requires_grad_();
  const at::Tensor target = some_targets(8, 100).to(kGpu);
  gpus.take_counts();
  const at::Tensor losses = at::cross_entropy_loss(scores, target, {}, at::Reduction::None, kIgnored, 0);
  EXPECT_EQ(gpus.take_counts().kernels, 1);
  EXPECT_EQ(losses.sizes(), at::IntArrayRef({8}));
  EXPECT_EQ(losses[1].item<float>(), 0);
}

TEST_F(GpuCrossEntropy, OtherFormsAreLibtorchs) {
  const at::Tensor values = at::randn({4, 10}, at::kFloat), weight = at::rand({10});
  const at::Tensor target = at::randint(10, {4}, at::kLong);
  const at::Tensor expected = at::cross_entropy_loss(values, target, weight);
  const at::Tensor found = at::cross_entropy_loss(values.to(kGpu), target.to(kGpu), weight.to(kGpu));
  EXPECT_TRUE(at::allclose(found.cpu(), expected));
  const at::Tensor wide = at::cross_entropy_loss(values.to(at::kDouble).to(kGpu), target.to(kGpu));
  EXPECT_EQ(wide.scalar_type(), at::kDouble);
}

TEST_F(GpuCrossEntropy, ATargetThatIsNoClassMakesTheLossNaN) {
  const at::Tensor target = at::full({4}, 10, at::kLong);
  const at::Tensor loss = at::cross_entropy_loss(at::zeros({4, 10}, kGpu), target.to(kGpu));
  EXPECT_TRUE(loss.isnan().item<bool>());
}

}  // namespace
}  // namespace dtrain::train
