// Gradients of layer norm and RMS norm on GPUs that are not there: by dtrain's kernels, as autograd calls them, against
// libtorch's operators.
#include "gpu_with_kernels.h"
#include "model/precision.h"
#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

using test::gpus;
using test::kGpu;
using testing::IsEmpty;

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

constexpr double kEps = 1e-5;

class GpuNorms : public test::GpuWithKernels {
 protected:
  void SetUp() override {
    GpuWithKernels::SetUp();
    if (!IsSkipped()) use_own_operators();
  }
};

// Leaves, and the gradients that they have after backward().
struct Norm {
  at::Tensor x, weight, bias;

  static Norm random(at::IntArrayRef sizes) {
    const std::int64_t columns = sizes.back();
    return {at::randn(sizes, at::kFloat) * 2 + 1, at::randn({columns}, at::kFloat), at::randn({columns}, at::kFloat)};
  }
  Norm to(at::Device device, at::ScalarType type) const {
    const auto copy = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.detach().to(device, type, false, true).requires_grad_() : tensor;
    };
    return {copy(x), copy(weight), copy(bias)};
  }
  at::Tensor result() const { return at::layer_norm(x, {x.size(-1)}, weight, bias, kEps); }
  // The gradient of each element of the result is another one.
  void backward(const at::Tensor& result) const {
    const at::Tensor of_result = at::arange(result.numel(), at::kLong).remainder(13).sub(5).view(result.sizes());
    result.backward(of_result.to(result.device(), result.scalar_type()));
  }
};

void expect_close(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  EXPECT_TRUE(at::allclose(found.cpu().to(at::kDouble), expected.cpu().to(at::kDouble), tolerance, tolerance));
}

TEST_F(GpuNorms, LayerNormIsThatOfFloat64) {
  const std::vector<std::vector<std::int64_t>> all_sizes{{1, 1},     {7, 5},    {3, 4, 64}, {9, 300},
                                                         {33, 1024}, {5, 1500}, {3, 4096},  {2, 4100}};
  for (const auto& sizes : all_sizes) {
    SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes));
    const Norm values = Norm::random(sizes);
    const Norm expected = values.to(at::kCPU, at::kDouble), found = values.to(kGpu, at::kFloat);
    expected.backward(expected.result());
    const at::Tensor result = found.result();
    found.backward(result);
    expect_close(found.x.grad(), expected.x.grad(), 1e-4);
    expect_close(found.weight.grad(), expected.weight.grad(), 1e-4);
    expect_close(found.bias.grad(), expected.bias.grad(), 1e-5);
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

// Autocast casts the inputs to float32, and the gradient of x back.
TEST_F(GpuNorms, UnderAutocastFloat32Arrives) {
  const Norm values = Norm::random({6, 96});
  const Norm expected = values.to(at::kCPU, at::kDouble);
  expected.x.set_data(values.x.to(at::kBFloat16).to(at::kDouble));
  expected.backward(expected.result());
  Norm found = values.to(kGpu, at::kFloat);
  found.x = values.x.to(at::kBFloat16).to(kGpu).requires_grad_();
  at::Tensor result;
  {
    const Autocast autocast(at::kBFloat16, kGpu);
    result = found.result();
  }
  EXPECT_EQ(result.scalar_type(), at::kFloat);
  found.backward(result);
  EXPECT_EQ(found.x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(found.weight.grad().scalar_type(), at::kFloat);
  expect_close(found.x.grad(), expected.x.grad(), 1e-2);
  expect_close(found.weight.grad(), expected.weight.grad(), 1e-4);
  expect_close(found.bias.grad(), expected.bias.grad(), 1e-5);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

// What layer norm's backward gets, on the CPU in float64.
struct Backward {
  at::Tensor of_result, x, mean, reciprocal, weight, bias;

  static Backward random(std::int64_t rows, std::int64_t columns) {
    const auto values = [&] { return at::randn({rows, columns}, at::kDouble).to(at::kBFloat16).to(at::kDouble); };
    const auto vector = [&] { return at::randn({columns}, at::kDouble).to(at::kBFloat16).to(at::kDouble); };
    Backward made{values(), values(), {}, {}, vector(), vector()};
    made.mean = made.x.mean(1, true);
    made.reciprocal = made.x.var(1, false, true).add(kEps).rsqrt();
    return made;
  }
  Backward on_gpu(at::ScalarType type) const {
    const at::ScalarType of_rows = type == at::kBFloat16 ? at::kFloat : type;
    return {of_result.to(kGpu, type),     x.to(kGpu, type),      mean.to(kGpu, of_rows),
            reciprocal.to(kGpu, of_rows), weight.to(kGpu, type), bias.to(kGpu, type)};
  }
  ThreeTensors compute(std::array<bool, 3> wanted = {true, true, true}) const {
    const at::NoGradGuard no_grad;  // as in a backward pass
    return at::native_layer_norm_backward(of_result, x, {x.size(1)}, mean, reciprocal, weight, bias, wanted);
  }
};

void expect_all_close(const ThreeTensors& found, const ThreeTensors& expected, double tolerance) {
  expect_close(std::get<0>(found), std::get<0>(expected), tolerance);
  expect_close(std::get<1>(found), std::get<1>(expected), tolerance);
  expect_close(std::get<2>(found), std::get<2>(expected), tolerance);
}

TEST_F(GpuNorms, TwoKernelsAndNoWait) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Backward values = Backward::random(20, 130), on_gpu = values.on_gpu(type);
    gpus.take_counts();
    const auto found = on_gpu.compute();
    const auto counts = gpus.take_counts();
    EXPECT_EQ(counts.kernels, 2);
    EXPECT_EQ(counts.host_syncs, 0);
    EXPECT_EQ(std::get<0>(found).scalar_type(), type);
    EXPECT_EQ(std::get<1>(found).scalar_type(), type);
    expect_all_close(found, values.compute(), type == at::kFloat ? 1e-4 : 1e-2);
    const auto again = on_gpu.compute();
    EXPECT_TRUE(at::equal(std::get<1>(again).cpu(), std::get<1>(found).cpu()));
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuNorms, ABiasNeedNotBe) {
  const Backward values = Backward::random(10, 70);
  Backward without = values.on_gpu(at::kFloat);
  without.bias = at::Tensor();
  gpus.take_counts();
  const auto found = without.compute({true, true, false});
  EXPECT_EQ(gpus.take_counts().kernels, 2);
  EXPECT_FALSE(std::get<2>(found).defined());
  expect_close(std::get<0>(found), std::get<0>(values.compute()), 1e-4);
  expect_close(std::get<1>(found), std::get<1>(values.compute()), 1e-4);
}

TEST_F(GpuNorms, OtherFormsAreLibtorchs) {
  const Backward values = Backward::random(12, 40);
  const auto expected = values.compute();
  const auto is_libtorchs = [&](const Backward& given) {
    gpus.take_counts();
    const auto found = given.compute();
    EXPECT_EQ(gpus.take_counts().kernels, 1);
    expect_all_close(found, expected, 1e-4);
  };
  is_libtorchs(values.on_gpu(at::kDouble));
  Backward other_order = values.on_gpu(at::kFloat);
  other_order.of_result = other_order.of_result.t().contiguous().t();
  is_libtorchs(other_order);
}

TEST_F(GpuNorms, WithoutAWeightItIsLibtorchs) {
  Norm values = Norm::random({8, 48});
  values.weight = values.bias = at::Tensor();
  const Norm expected = values.to(at::kCPU, at::kDouble), found = values.to(kGpu, at::kFloat);
  expected.backward(expected.result());
  found.backward(found.result());
  expect_close(found.x.grad(), expected.x.grad(), 1e-4);
}

TEST_F(GpuNorms, CanBeDifferentiatedTwice) {
  const Norm values = Norm::random({4, 20});
  const auto penalty = [](const Norm& of) {
    const at::Tensor gradient =
        torch::autograd::grad({of.result().pow(3).sum()}, {of.x}, {}, true, /*create_graph=*/true)[0];
    gradient.square().sum().backward();
    return of.x.grad();
  };
  expect_close(penalty(values.to(kGpu, at::kFloat)), penalty(values.to(at::kCPU, at::kDouble)), 1e-2);
}

TEST_F(GpuNorms, RmsNormIsThatOfFloat64) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Backward values = Backward::random(11, 200);
    const at::Tensor x = values.x.clone().requires_grad_(), weight = values.weight.clone().requires_grad_();
    const at::Tensor reciprocal = x.detach().square().mean(1, true).add(kEps).rsqrt();
    at::rms_norm(x, {200}, weight, kEps).backward(values.of_result);
    const Backward on_gpu = values.on_gpu(type);
    const at::NoGradGuard no_grad;
    const at::Tensor of_rows = reciprocal.to(kGpu, at::kFloat);
    gpus.take_counts();
    const auto [of_x, of_weight] =
        at::_fused_rms_norm_backward(on_gpu.of_result, on_gpu.x, {200}, of_rows, on_gpu.weight, {true, true});
    EXPECT_EQ(gpus.take_counts().kernels, 2);
    expect_close(of_x, x.grad(), type == at::kFloat ? 1e-4 : 1e-2);
    expect_close(of_weight, weight.grad(), type == at::kFloat ? 1e-4 : 1e-2);
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

}  // namespace
}  // namespace dtrain::train
