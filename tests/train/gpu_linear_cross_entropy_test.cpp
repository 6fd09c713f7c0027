// dtrain::linear_cross_entropy() on GPUs that are not there, against linear and cross_entropy in float64.
#include "dtrain/train/linear_cross_entropy.h"

#include "device/device_kernels.h"
#include "gpus.h"
#include "model/precision.h"

namespace dtrain::train {
namespace {

using test::gpus;
using test::kGpu;
using testing::IsEmpty;

class GpuLinearCrossEntropy : public test::OnGpus {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
#ifdef DTRAIN_HAS_CUDA_KERNELS
    ASSERT_EQ(why_no_device_kernels(), "");
#endif
    at::manual_seed(29);
    input_ = at::randn({7, 6}, at::kFloat);
    weight_ = at::randn({33, 6}, at::kFloat);
    bias_ = at::randn({33}, at::kFloat);
    target_ = at::randint(33, {7}, at::kLong);
    target_[2] = -100;
  }

  struct Results {
    at::Tensor loss, of_input, of_weight, of_bias;
  };
  Results unfused(double smoothing) const {
    const auto leaf = [](const at::Tensor& tensor) { return tensor.to(at::kDouble).requires_grad_(); };
    const at::Tensor input = leaf(input_), weight = leaf(weight_), bias = leaf(bias_);
    const at::Tensor loss =
        at::cross_entropy_loss(at::linear(input, weight, bias), target_, {}, at::Reduction::Mean, -100, smoothing);
    loss.backward();
    return {loss.detach(), input.grad(), weight.grad(), bias.grad()};
  }
  Results fused(double smoothing, std::optional<at::ScalarType> autocast_to) const {
    const auto leaf = [](const at::Tensor& tensor) { return tensor.to(kGpu).requires_grad_(); };
    const at::Tensor input = leaf(input_), weight = leaf(weight_), bias = leaf(bias_), target = target_.to(kGpu);
    gpus.take_counts();
    at::Tensor loss;
    {
      const Autocast autocast(autocast_to, kGpu);
      loss = linear_cross_entropy(input, weight, target,
                                  {.linear_bias = bias, .label_smoothing = smoothing, .chunk_bytes = 3 * 64 * 4});
    }
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    loss.backward();
    EXPECT_EQ(gpus.take_counts().host_syncs, 0);
    return {loss.detach().cpu(), input.grad().cpu(), weight.grad().cpu(), bias.grad().cpu()};
  }
  static void expect_near(const Results& found, const Results& expected, double tolerance) {
    const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
      return at::allclose(a.to(at::kDouble), b, tolerance, tolerance);
    };
    EXPECT_TRUE(near(found.loss, expected.loss));
    EXPECT_TRUE(near(found.of_input, expected.of_input));
    EXPECT_TRUE(near(found.of_weight, expected.of_weight));
    EXPECT_TRUE(near(found.of_bias, expected.of_bias));
  }

  at::Tensor input_, weight_, bias_, target_;
};

// With smoothing the scores have no columns that align their rows.
TEST_F(GpuLinearCrossEntropy, IsThatOfFloat64WithoutAWaitOfTheHost) {
  for (const double smoothing : {0.0, 0.1}) {
    expect_near(fused(smoothing, std::nullopt), unfused(smoothing), 1e-4);
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuLinearCrossEntropy, ProductsInBfloat16UnderAutocast) {
  for (const double smoothing : {0.0, 0.1}) expect_near(fused(smoothing, at::kBFloat16), unfused(smoothing), 0.05);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

}  // namespace
}  // namespace dtrain::train
