// add_layer_norm() and add_rms_norm() on GPUs that are not there, against float64.
#include <functional>

#include "add_norms.h"
#include "device/device_kernels.h"
#include "gpus.h"
#include "model/precision.h"

namespace dtrain::test {
namespace {

using testing::IsEmpty;

class GpuAddNorm : public OnGpus {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
#ifdef DTRAIN_HAS_CUDA_KERNELS
    ASSERT_EQ(train::why_no_device_kernels(), "");
#endif
    at::manual_seed(31);
  }
  static constexpr bool has_kernels() {
#ifdef DTRAIN_HAS_CUDA_KERNELS
    return true;
#else
    return false;
#endif
  }
};

struct Types {
  at::ScalarType wide, narrow;
  std::optional<at::ScalarType> autocast;
};

AddNormResult norm_of(const AddNormInputs& inputs, bool rms, std::optional<at::ScalarType> autocast_to) {
  const train::Autocast autocast(autocast_to, kGpu);
  return inputs.norm(rms);
}

TEST_F(GpuAddNorm, IsThatOfFloat64) {
  const std::vector<std::vector<std::int64_t>> all_sizes{{5},       {7, 5},    {3, 4, 64}, {9, 300},
                                                         {2, 1500}, {2, 4096}, {2, 4100}};
  for (const auto& sizes : all_sizes) {
    for (const Types& types : {Types{at::kFloat, at::kFloat, {}}, Types{at::kFloat, at::kBFloat16, at::kBFloat16},
                               Types{at::kBFloat16, at::kBFloat16, {}}}) {
      for (const bool rms : {false, true}) {
        if (rms && (!has_kernels() || sizes.back() > 4096)) continue;  // these GPUs have no operator for it
        SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << " of " << types.wide << " and " << types.narrow
                                        << (rms ? ", RMS" : ""));
        const AddNormInputs inputs = AddNormInputs::random(sizes, !rms).to(kGpu, types.wide, types.narrow);
        const AddNormInputs exact = inputs.exact();
        const AddNormResult found = norm_of(inputs, rms, types.autocast), expected = exact.norm(rms);
        EXPECT_EQ(found.sum.scalar_type(), types.wide);
        EXPECT_EQ(found.normalized.scalar_type(), types.narrow);
        const double tolerance = types.narrow == at::kFloat ? 1e-4 : 0.05;
        expect_close(found.normalized, expected.normalized, tolerance);
        expect_close(found.sum, expected.sum, tolerance);
        const auto gradients = inputs.gradients(found), of_exact = exact.gradients(expected);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          EXPECT_EQ(gradients[i].scalar_type(), i == 0 ? types.narrow : types.wide);
          const double size = of_exact[i].abs().max().item<double>();
          expect_close(gradients[i] / size, of_exact[i] / size, tolerance);
        }
      }
    }
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuAddNorm, ThreeKernelsAndNoWait) {
  if (!has_kernels()) GTEST_SKIP() << "built without nvcc";
  const AddNormInputs inputs = AddNormInputs::random({6, 96}).to(kGpu, at::kFloat, at::kBFloat16);
  gpus.take_counts();
  const AddNormResult found = norm_of(inputs, false, at::kBFloat16);
  EXPECT_EQ(gpus.take_counts().kernels, 1);
  const at::Tensor of_normalized = at::ones_like(found.normalized), of_sum = at::ones_like(found.sum);
  gpus.take_counts();
  torch::autograd::grad({found.normalized, found.sum}, inputs.leaves(), {of_normalized, of_sum});
  const auto counts = gpus.take_counts();
  EXPECT_EQ(counts.kernels, 2);
  EXPECT_EQ(counts.host_syncs, 0);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

// The last norm of a model: nothing reads its sum. And a sum whose norm nothing reads.
TEST_F(GpuAddNorm, OneOfTheResultsMayHaveNoGradient) {
  const AddNormInputs inputs = AddNormInputs::random({6, 20}).to(kGpu, at::kFloat, at::kFloat), exact = inputs.exact();
  const auto expect_same = [&](const std::function<at::Tensor(const AddNormResult&)>& loss) {
    const auto of = [&](const AddNormInputs& values) {
      return torch::autograd::grad({loss(values.norm(false))}, {values.input, values.residual});
    };
    expect_close(of(inputs), of(exact), 1e-4);
  };
  expect_same([](const AddNormResult& result) { return result.normalized.pow(3).sum(); });
  expect_same([](const AddNormResult& result) { return result.sum.pow(3).sum(); });
}

TEST_F(GpuAddNorm, TakesViews) {
  const AddNormInputs values = AddNormInputs::random({20, 6}).to(kGpu, at::kFloat, at::kFloat);
  const at::Tensor weight = at::ones({20}, kGpu), input = values.input.t(), residual = values.residual.t();
  const at::Tensor found = add_layer_norm(input, residual, weight).normalized;
  expect_close(found, at::layer_norm((input + residual).cpu(), {20}), 1e-4);
}

TEST_F(GpuAddNorm, CanBeDifferentiatedTwice) {
  for (const bool rms : {false, true}) {
    if (rms && !has_kernels()) continue;
    const AddNormInputs inputs = AddNormInputs::random({4, 20}, !rms).to(kGpu, at::kFloat, at::kFloat);
    const AddNormInputs exact = inputs.exact();
    const auto penalty = [&](const AddNormInputs& values, const AddNormResult& result) {
      const at::Tensor gradient = values.gradients(result, /*create_graph=*/true)[1];
      return torch::autograd::grad({gradient.square().mean()}, {values.input, values.residual, values.weight});
    };
    expect_close(penalty(inputs, inputs.norm(rms)), penalty(exact, exact.unfused(rms)), 1e-2);
  }
}

}  // namespace
}  // namespace dtrain::test
