// Operators that dtrain computes itself give what libtorch's give, up to rounding: float64, which is libtorch's own
// either way, is the reference. A program of its own: whose operators a process has is decided once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/torch.h>

#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class OwnOperators : public testing::Test {
 protected:
  OwnOperators() {
    use_own_operators();
    torch::manual_seed(3);
  }
  ~OwnOperators() override { at::set_num_threads(1); }
};

struct Result {
  at::Tensor value, gradient;
};

Result in_type(const at::Tensor& scores, at::ScalarType type, const std::function<at::Tensor(const at::Tensor&)>& f) {
  const at::Tensor x = scores.detach().to(type, false, true).requires_grad_();
  const at::Tensor y = f(x);
  // Of different weights, so that a row's gradient is seen to be that row's.
  (y * torch::arange(1, y.numel() + 1, y.options()).view_as(y).remainder(7)).sum().backward();
  return {y.detach(), x.grad()};
}

void expect_near(const at::Tensor& ours, const at::Tensor& exact, double tolerance) {
  const at::Tensor a = ours.to(at::kDouble), b = exact.to(at::kDouble);
  const at::Tensor both_none = a.isnan().logical_and(b.isnan());
  const at::Tensor same = both_none.logical_or(a.eq(b));
  const at::Tensor error = ((a - b).abs() / (b.abs() + 1)).masked_fill(same, 0);
  const std::int64_t worst = error.argmax().item<std::int64_t>();  // a NaN, if there is one
  EXPECT_LE(error.flatten()[worst].item<double>(), tolerance)
      << a.flatten()[worst].item<double>() << " instead of " << b.flatten()[worst].item<double>();
}

struct Case {
  std::int64_t rows, classes;
  double smoothing = 0;
  std::int64_t ignored_every = 0;  // 0: none
};

class OwnCrossEntropy : public OwnOperators, public testing::WithParamInterface<Case> {
 protected:
  at::Tensor scores_ = torch::randn({GetParam().rows, GetParam().classes}) * 5;
  at::Tensor target_ = [] {
    at::Tensor target = torch::randint(0, GetParam().classes, {GetParam().rows}, at::kLong);
    for (std::int64_t i = 0; GetParam().ignored_every > 0 && i < GetParam().rows; i += GetParam().ignored_every) {
      target[i] = -7;
    }
    return target;
  }();

  Result of(at::ScalarType type, at::Reduction::Reduction reduction) const {
    return in_type(scores_, type, [&](const at::Tensor& x) {
      return at::cross_entropy_loss(x, target_, {}, reduction, -7, GetParam().smoothing);
    });
  }
};

TEST_P(OwnCrossEntropy, IsLibtorchs) {
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    const Result exact = of(at::kDouble, reduction), ours = of(at::kFloat, reduction);
    EXPECT_EQ(ours.value.scalar_type(), at::kFloat);
    EXPECT_EQ(ours.value.sizes(), exact.value.sizes());
    expect_near(ours.value, exact.value, 1e-6);
    expect_near(ours.gradient, exact.gradient, 1e-6);
  }
}

TEST_P(OwnCrossEntropy, DoesNotDependOnTheThreads) {
  const Result one = of(at::kFloat, at::Reduction::Mean);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    const Result several = of(at::kFloat, at::Reduction::Mean);
    EXPECT_TRUE(at::equal(several.value.nan_to_num(-1), one.value.nan_to_num(-1)));
    EXPECT_TRUE(at::equal(several.gradient, one.gradient));
  }
}

// Of scores that autocast has made bfloat16 the loss is float32, and the gradient bfloat16: as if they were cast.
TEST_P(OwnCrossEntropy, UnderAutocastTakesBfloat16AsItIs) {
  const at::Tensor narrow = scores_.to(at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor x = narrow.clone().requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(x, target_, {}, at::Reduction::Sum, -7, GetParam().smoothing);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  loss.backward();
  const at::Tensor wide = narrow.to(at::kDouble).requires_grad_();
  const at::Tensor exact = at::cross_entropy_loss(wide, target_, {}, at::Reduction::Sum, -7, GetParam().smoothing);
  exact.backward();
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  expect_near(loss, exact, 1e-6);
  expect_near(x.grad(), wide.grad(), 1.0 / 256);  // half a step of bfloat16
}

INSTANTIATE_TEST_SUITE_P(Shapes, OwnCrossEntropy,
                         testing::Values(Case{1, 1}, Case{2, 3}, Case{7, 10}, Case{5, 16, 0.1}, Case{33, 65, 0.3, 3},
                                         Case{64, 1000, 0, 5}, Case{16, 8192}, Case{3, 50304, 0.1, 2},
                                         Case{4, 31, 0, 1}));

TEST_F(OwnOperators, CrossEntropyOfScoresThatAreNotNumbers) {
  for (const double odd : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    at::Tensor scores = torch::randn({3, 20});
    scores[1][4] = odd;
    const at::Tensor target = torch::tensor({4, 3, 5}, at::kLong);
    const auto loss = [&](const at::Tensor& x) { return at::cross_entropy_loss(x, target, {}, at::Reduction::None); };
    const Result exact = in_type(scores, at::kDouble, loss), ours = in_type(scores, at::kFloat, loss);
    expect_near(ours.value, exact.value, 1e-6);
    expect_near(ours.gradient, exact.gradient, 1e-6);
  }
}

TEST_F(OwnOperators, CrossEntropyOfATargetThatIsNoClassIsAnError) {
  const at::Tensor scores = torch::randn({2, 3});
  for (const std::int64_t wrong : {3L, -1L}) {
    try {
      at::cross_entropy_loss(scores, torch::tensor({0L, static_cast<long>(wrong)}));
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("Target " + std::to_string(wrong) + " is out of bounds"));
    }
  }
}

TEST_F(OwnOperators, CrossEntropyOfWhatTheKernelDoesNotKnowIsLibtorchs) {
  const at::Tensor images = torch::randn({2, 3, 4, 5}), weight = torch::rand({3});
  const at::Tensor classes = torch::randint(0, 3, {2, 4, 5}, at::kLong);
  const auto loss = [&](const at::Tensor& x) { return at::cross_entropy_loss(x, classes, weight.to(x.scalar_type())); };
  const Result exact = in_type(images, at::kDouble, loss), ours = in_type(images, at::kFloat, loss);
  expect_near(ours.value, exact.value, 1e-6);
  expect_near(ours.gradient, exact.gradient, 1e-6);
  const at::Tensor scores = torch::randn({4, 3}), shares = torch::rand({4, 3});
  expect_near(at::cross_entropy_loss(scores, shares),
              at::cross_entropy_loss(scores.to(at::kDouble), shares.to(at::kDouble)), 1e-6);
}

TEST_F(OwnOperators, ScoresInAnotherOrderAndWithoutGradients) {
  const at::Tensor scores = torch::randn({20, 6}), target = torch::randint(0, 20, {6}, at::kLong);
  const at::NoGradGuard no_grad;
  expect_near(at::cross_entropy_loss(scores.t(), target), at::cross_entropy_loss(scores.t().to(at::kDouble), target),
              1e-6);
}

// The gradient of a gradient, as a gradient penalty needs it.
at::Tensor gradient_of_gradient(const at::Tensor& from, at::ScalarType type,
                                const std::function<at::Tensor(const at::Tensor&)>& f) {
  const at::Tensor x = from.detach().to(type, false, true).requires_grad_();
  const at::Tensor gradient = torch::autograd::grad({f(x).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
  gradient.square().sum().backward();
  return x.grad();
}

TEST_F(OwnOperators, CanBeDifferentiatedTwice) {
  const at::Tensor scores = torch::randn({5, 7}), target = torch::randint(0, 7, {5}, at::kLong);
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> operators{
      [&](const at::Tensor& x) { return at::cross_entropy_loss(x, target); },
      [](const at::Tensor& x) { return at::gelu(x, "tanh"); }, [](const at::Tensor& x) { return at::gelu(x, "none"); }};
  for (const auto& one : operators) {
    expect_near(gradient_of_gradient(scores, at::kFloat, one), gradient_of_gradient(scores, at::kDouble, one), 1e-5);
  }
}

TEST_F(OwnOperators, GeluIsLibtorchs) {
  for (const std::int64_t size : {0, 1, 15, 16, 17, 1000, 100'003}) {
    const at::Tensor values = torch::randn({size}) * 4;
    for (const char* approximate : {"tanh", "none"}) {
      const auto gelu = [&](const at::Tensor& x) { return at::gelu(x, approximate); };
      if (size == 0) {
        EXPECT_EQ(gelu(values).numel(), 0);
        continue;
      }
      const Result exact = in_type(values, at::kDouble, gelu);
      const Result one = in_type(values, at::kFloat, gelu);
      expect_near(one.value, exact.value, 2e-6);
      expect_near(one.gradient, exact.gradient, 2e-6);
      at::set_num_threads(3);
      const Result several = in_type(values, at::kFloat, gelu);
      at::set_num_threads(1);
      EXPECT_TRUE(at::equal(several.value, one.value) && at::equal(several.gradient, one.gradient));
    }
  }
}

TEST_F(OwnOperators, GeluInBfloat16IsComputedInFloat32) {
  const at::Tensor values = (torch::randn({300}) * 4).to(at::kBFloat16);
  const Result exact = in_type(values, at::kDouble, [](const at::Tensor& x) { return at::gelu(x, "tanh"); });
  const at::Tensor x = values.clone().requires_grad_();
  const at::Tensor y = at::gelu(x, "tanh");
  y.backward(torch::arange(1, 301, at::kDouble).remainder(7).to(at::kBFloat16));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  expect_near(y, exact.value, 1.0 / 256);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  expect_near(x.grad(), exact.gradient, 2.0 / 256);
}

TEST_F(OwnOperators, GeluOfTransposedAndOfExtremeValues) {
  const at::Tensor values = torch::randn({6, 9});
  const auto gelu = [](const at::Tensor& x) { return at::gelu(x.t(), "tanh"); };
  const Result exact = in_type(values, at::kDouble, gelu), ours = in_type(values, at::kFloat, gelu);
  expect_near(ours.value, exact.value, 1e-6);
  expect_near(ours.gradient, exact.gradient, 2e-6);
  const at::Tensor extremes = torch::tensor({-1000.0, -100.0, -20.0, 20.0, 100.0, 1000.0, kInfinity, -0.0});
  expect_near(at::gelu(extremes.to(at::kFloat), "tanh"), at::gelu(extremes, "tanh"), 1e-6);
  const at::Tensor far = torch::tensor({-3e38, -1e30, -1e14, -1e12, 1e12, 1e14, 1e18});
  const at::Tensor x = far.to(at::kFloat).requires_grad_();
  const at::Tensor y = at::gelu(x, "tanh");
  y.sum().backward();
  EXPECT_TRUE(at::allclose(y.detach(), far.clamp_min(0).to(at::kFloat), 1e-6, 1e-6)) << y;
  EXPECT_TRUE(at::allclose(x.grad(), (far > 0).to(at::kFloat), 1e-6, 1e-6)) << x.grad();
  EXPECT_TRUE(at::gelu(torch::full({1}, NAN), "tanh").isnan().all().item<bool>());
}

// Of scaled_dot_product_attention: for query, key and value of [2, 3, tokens, 16].
struct AttentionCase {
  std::int64_t queries, keys;
  bool causal = false, mask = false;
  std::optional<double> scale;
};

class OwnAttention : public OwnOperators, public testing::WithParamInterface<AttentionCase> {
 protected:
  // The result, and the gradients of query, key and value.
  std::vector<at::Tensor> of(at::ScalarType type) const {
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& one : {query_, key_, value_}) inputs.push_back(one.to(type).detach().requires_grad_());
    const auto mask = GetParam().mask ? std::optional(mask_.to(type)) : std::nullopt;
    const at::Tensor result =
        at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], mask, 0, GetParam().causal, GetParam().scale);
    (result * weights_.to(type)).sum().backward();
    return {result.detach(), inputs[0].grad(), inputs[1].grad(), inputs[2].grad()};
  }

  static at::Tensor numbers(std::int64_t tokens) { return torch::randn({2, 3, tokens, 16}).to(at::kBFloat16); }
  at::Tensor query_ = numbers(GetParam().queries), key_ = numbers(GetParam().keys), value_ = numbers(GetParam().keys);
  at::Tensor mask_ = torch::randn({GetParam().queries, GetParam().keys}).to(at::kBFloat16);
  at::Tensor weights_ = numbers(GetParam().queries);
};

TEST_P(OwnAttention, InBfloat16HasTheGradientOfTheSameNumbers) {
  const auto exact = of(at::kDouble), ours = of(at::kBFloat16), single = of(at::kFloat);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), at::kBFloat16);
    expect_near(ours[i], exact[i], 4.0 / 256);
    expect_near(single[i], exact[i], 1e-5);
  }
  at::set_num_threads(3);
  const auto several = of(at::kBFloat16);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_TRUE(at::equal(several[i], ours[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, OwnAttention,
                         testing::Values(AttentionCase{1, 1}, AttentionCase{5, 7}, AttentionCase{33, 33, true},
                                         AttentionCase{130, 130, true}, AttentionCase{70, 600},
                                         AttentionCase{40, 40, false, true}, AttentionCase{17, 9, false, true, 0.5}));

// The images are [samples, 256, side, side], the weight is [512, 256, kernel, kernel].
struct ConvolutionCase {
  std::int64_t samples, side, kernel, stride = 1, padding = 0;
  bool bias = false, images_last = false, weight_last = false;
};

class OwnConvolution : public OwnOperators, public testing::WithParamInterface<ConvolutionCase> {
 protected:
  static at::MemoryFormat format(bool last) {
    return last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  }
  // The result, and the gradients of images, weight and bias.
  std::vector<at::Tensor> of(at::ScalarType type, bool with_graph = false) const {
    const ConvolutionCase& c = GetParam();
    const auto leaf = [&](const at::Tensor& one, bool last) {
      return one.to(type)
          .contiguous(one.dim() == 4 ? format(last) : at::MemoryFormat::Contiguous)
          .detach()
          .requires_grad_();
    };
    std::vector<at::Tensor> inputs{leaf(images_, c.images_last), leaf(weight_, c.weight_last)};
    if (c.bias) inputs.push_back(leaf(bias_, false));
    const at::Tensor result =
        at::conv2d(inputs[0], inputs[1], c.bias ? std::optional(inputs[2]) : std::nullopt, c.stride, c.padding);
    const at::Tensor weights = torch::arange(1, result.numel() + 1).remainder(7).view_as(result).to(type);
    std::vector<at::Tensor> all =
        torch::autograd::grad({(result * weights).sum()}, inputs, {}, std::nullopt, with_graph);
    if (with_graph) all = torch::autograd::grad({all[0].square().sum()}, {inputs[1]});
    all.insert(all.begin(), result.detach());
    return all;
  }

  at::Tensor images_ = torch::randn({GetParam().samples, 256, GetParam().side, GetParam().side}).to(at::kBFloat16);
  at::Tensor weight_ = (torch::randn({512, 256, GetParam().kernel, GetParam().kernel}) / 16).to(at::kBFloat16);
  at::Tensor bias_ = torch::randn({512}).to(at::kBFloat16);
};

TEST_P(OwnConvolution, IsLibtorchs) {
  const auto exact = of(at::kDouble);
  // In bfloat16 the products with each weight of a pixel are rounded before they are added: the norm of all says more
  // than the worst element, whose terms may cancel.
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-6}, std::pair{at::kBFloat16, 1.0 / 256}}) {
    const auto ours = of(type);
    ASSERT_EQ(ours.size(), exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_EQ(ours[i].scalar_type(), type);
      EXPECT_EQ(ours[i].sizes(), exact[i].sizes());
      EXPECT_LE((ours[i].to(at::kDouble) - exact[i]).norm().item<double>(), tolerance * exact[i].norm().item<double>())
          << type << " " << i;
    }
    const bool last = GetParam().images_last || GetParam().weight_last;
    EXPECT_TRUE(ours[0].is_contiguous(format(last)));
    EXPECT_TRUE(ours[1].is_contiguous(format(GetParam().images_last)));
  }
}

TEST_P(OwnConvolution, HasGradientsOfGradients) {
  const at::Tensor exact = of(at::kDouble, true)[1], ours = of(at::kFloat, true)[1];
  EXPECT_LE((ours.to(at::kDouble) - exact).norm().item<double>(), 1e-5 * exact.norm().item<double>());
}

INSTANTIATE_TEST_SUITE_P(Shapes, OwnConvolution,
                         testing::Values(ConvolutionCase{5, 2, 3, 1, 1, false, true, true},
                                         ConvolutionCase{5, 2, 3, 1, 1, true, false, true},
                                         ConvolutionCase{3, 7, 3, 2, 1, true, true, true},
                                         ConvolutionCase{3, 5, 3, 2, 0, false, false, true},
                                         ConvolutionCase{2, 8, 3, 1, 1, true, true, true},
                                         ConvolutionCase{2, 3, 5, 1, 2, false, true, true},
                                         ConvolutionCase{3, 5, 3, 2, 0, true, true, false},     // libtorch's
                                         ConvolutionCase{1, 12, 3, 1, 1, false, true, true}));  // the same

at::Tensor of_channels_last(at::IntArrayRef sizes) {
  return torch::randn(sizes).contiguous(at::MemoryFormat::ChannelsLast);
}

// All four, of a number each.
std::vector<std::function<at::Tensor(const at::Tensor&)>> all_operators() {
  const at::Tensor weight = of_channels_last({256, 32, 3, 3});
  const at::Tensor target = torch::tensor({3, 1}, at::kLong);
  return {[=](const at::Tensor& x) { return at::cross_entropy_loss(x.flatten(1), target); },
          [](const at::Tensor& x) { return at::gelu(x, "tanh").sum(); },
          [](const at::Tensor& x) {
            const at::Tensor heads = x.to(at::kBFloat16).flatten(2).unsqueeze(0);
            return at::scaled_dot_product_attention(heads, heads, heads).to(x.scalar_type()).square().sum();
          },
          [=](const at::Tensor& x) { return at::conv2d(x, weight.to(x.scalar_type()), {}, 1, 1).square().sum(); }};
}

at::Tensor gradient_of(const at::Tensor& from, const std::function<at::Tensor(const at::Tensor&)>& f,
                       bool backward_in_autocast = false) {
  const at::Tensor x = from.detach().clone().requires_grad_();
  const at::Tensor y = f(x);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, backward_in_autocast);
  y.backward();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return x.grad();
}

TEST_F(OwnOperators, BackwardWithinAutocastIsAsOutsideOfIt) {
  const at::Tensor x = torch::randn({2, 32, 2, 2});
  for (const auto& one : all_operators()) {
    EXPECT_TRUE(at::equal(gradient_of(x, one, true), gradient_of(x, one)));
  }
}

TEST_F(OwnOperators, AreUsedAgainWhereTorchFuncIsOver) {
  const at::Tensor x = torch::randn({2, 32, 2, 2}).requires_grad_();
  at::functorch::initAndPushDynamicLayer(at::functorch::TransformType::Vmap, c10::SymInt(2),
                                         at::functorch::RandomnessType::Error);
  at::functorch::popDynamicLayerAndDeleteMetadata();
  EXPECT_THAT(at::gelu(x, "tanh").grad_fn()->name(), HasSubstr("dtrain"));
}

// A tangent goes through libtorch's operators: the directional derivative is that of the gradient.
TEST_F(OwnOperators, ForwardModeDifferentiationIsLibtorchs) {
  const at::Tensor x = torch::randn({2, 32, 2, 2}), direction = torch::randn_like(x);
  const auto operators = all_operators();
  for (const std::size_t i : {0U, 1U, 3U}) {  // libtorch has none of attention
    const double expected = (gradient_of(x, operators[i]) * direction).sum().item<double>();
    const std::uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
    const at::Tensor y = operators[i](at::_make_dual(x, direction, static_cast<std::int64_t>(level)));
    const double tangent = y._fw_grad(level).item<double>();
    torch::autograd::ForwardADLevel::release_idx(level);
    EXPECT_NEAR(tangent, expected, 1e-4 * (std::abs(expected) + 1)) << i;
  }
}

TEST_F(OwnOperators, ConvolutionsThatLibtorchRefusesAreItsErrors) {
  const at::Tensor images = torch::randn({2, 256, 2, 2}), weight = of_channels_last({512, 256, 3, 3});
  EXPECT_THROW(at::conv2d(images, weight), c10::Error);  // the kernel is larger than the image
  EXPECT_THROW(at::conv2d(images, weight, {}, 2), c10::Error);
  EXPECT_THROW(at::conv2d(images, weight, {}, 0, 1), c10::Error);  // no stride
  EXPECT_THROW(at::conv2d(images, weight, {}, 1, -1), c10::Error);
}

TEST_F(OwnOperators, ConvolutionsWithABiasOrStridesOfAnotherSizeAreLibtorchsErrors) {
  const at::Tensor images = torch::randn({2, 256, 2, 2}), weight = of_channels_last({512, 256, 3, 3});
  for (const at::IntArrayRef sizes : {at::IntArrayRef{1}, at::IntArrayRef{}, at::IntArrayRef{1, 512}}) {
    EXPECT_THROW(at::conv2d(images, weight, torch::randn(sizes), 1, 1), c10::Error) << sizes;
  }
  const std::vector<std::int64_t> one{1, 1}, none, three{1, 1, 1};
  for (const auto& odd : {none, three}) {
    EXPECT_THROW(at::convolution(images, weight, {}, odd, one, one, false, {0, 0}, 1), c10::Error) << odd;
    EXPECT_THROW(at::convolution(images, weight, {}, one, odd, one, false, {0, 0}, 1), c10::Error) << odd;
  }
}

// What each pixel sees, a row of a matrix, would be many times as large as images and weight together.
TEST_F(OwnOperators, ConvolutionsToManyPixelsOfFewChannelsAreLibtorchs) {
  const at::Tensor weight = of_channels_last({16, 4096, 4, 4}).requires_grad_();
  const auto name = [&](std::int64_t side) {
    return at::conv2d(torch::randn({1, 4096, side, side}), weight).grad_fn()->name();
  };
  EXPECT_THAT(name(11), HasSubstr("dtrain"));                // 64 pixels
  EXPECT_THAT(name(12), testing::Not(HasSubstr("dtrain")));  // 81
}

// Operators that follow keep the order of its values in memory, and view() needs to know it.
TEST_F(OwnOperators, ConvolutionsToOnePixelHaveTheStridesOfTheirFormat) {
  const at::Tensor images = torch::randn({4, 512, 1, 1}), weight = torch::randn({2048, 512, 1, 1});
  const at::Tensor pixel = at::conv2d(images, weight);
  EXPECT_EQ(pixel.suggest_memory_format(), at::MemoryFormat::Contiguous);
  EXPECT_EQ(at::upsample_nearest2d(pixel, at::IntArrayRef{2, 2}).view({4, -1}).size(1), 8192);
  EXPECT_EQ(at::conv2d(of_channels_last({4, 256, 3, 3}), of_channels_last({512, 256, 3, 3})).suggest_memory_format(),
            at::MemoryFormat::ChannelsLast);
}

TEST_F(OwnOperators, ConvolutionOfAPixel) {
  const at::Tensor images = torch::randn({4, 512, 1, 1}), weight = torch::randn({2048, 512, 1, 1}) / 16;
  expect_near(at::conv2d(images, weight), at::conv2d(images.to(at::kDouble), weight.to(at::kDouble)), 1e-5);
}

// Initial weights, and whatever is drawn after them, have libtorch's bits. Below autograd libtorch's own kernel runs.
at::Tensor& libtorchs_uniform(at::Tensor& values, double from, double to, std::optional<at::Generator> generator) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return values.uniform_(from, to, std::move(generator));
}

class OwnUniform : public OwnOperators {};

TEST_F(OwnUniform, HasTheBitsOfLibtorch) {
  at::Generator ours = at::detail::createCPUGenerator(7), theirs = ours.clone();
  const double tenth = std::nextafter(0.1, 1);
  for (const std::int64_t count : {1024, 1, 623, 624, 100'003, 1025, 5, 6240, 4097}) {
    for (const auto& [from, to] : {std::pair(-tenth, tenth), {0.0, 1.0}, {-3.0, 1e30}, {2.0, 2.0}}) {
      at::Tensor a = at::empty({count}), b = at::empty({count});
      a.uniform_(from, to, ours);
      libtorchs_uniform(b, from, to, theirs);
      ASSERT_TRUE(at::equal(a, b)) << count << " from " << from << " to " << to;
      ASSERT_TRUE(at::equal(ours.get_state(), theirs.get_state()));
    }
  }
  at::Tensor a = at::empty({64, 64}), b = at::empty({64, 64});
  torch::manual_seed(4);
  torch::nn::init::kaiming_uniform_(a, std::sqrt(5.0));
  const at::Tensor next = at::randn({5});
  torch::manual_seed(4);
  libtorchs_uniform(b, -0.125, 0.125, std::nullopt);
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_TRUE(at::equal(next, at::randn({5})));
}

TEST_F(OwnUniform, LeavesOtherCallsToLibtorch) {
  at::Tensor values = torch::empty({2048}).requires_grad_();
  EXPECT_THROW(values.uniform_(), c10::Error);  // a leaf
  const auto version = values._version();
  {
    const at::NoGradGuard no_grad;
    values.uniform_();
    EXPECT_THROW(values.uniform_(1, 0), c10::Error);
    EXPECT_THROW(values.uniform_(-3e38, 3e38), c10::Error);
  }
  EXPECT_EQ(values._version(), version + 1);
  at::Tensor times_two = values * 2;
  times_two.uniform_();
  times_two.sum().backward();
  EXPECT_TRUE(at::equal(values.grad(), at::zeros({2048})));
  for (const auto type : {at::kDouble, at::kBFloat16}) {
    EXPECT_LT(at::empty({2048}, type).uniform_().max().item<double>(), 1.0001);
  }
  at::Tensor columns = at::zeros({64, 64}), others = at::zeros({64, 64});
  at::Tensor every_other = columns.slice(1, 0, 64, 2), every_others = others.slice(1, 0, 64, 2);
  every_other.uniform_(0, 1, at::detail::createCPUGenerator(5));
  libtorchs_uniform(every_others, 0, 1, at::detail::createCPUGenerator(5));
  EXPECT_TRUE(at::equal(columns, others));
}

}  // namespace
}  // namespace dtrain::train
