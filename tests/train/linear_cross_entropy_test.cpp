// dtrain::linear_cross_entropy() against linear and cross_entropy of libtorch, which keep all scores.
#include "dtrain/train/linear_cross_entropy.h"

#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "exchange/gradient_exchange.h"
#include "exchange/replicated.h"
#include "harness/run_ranks.h"
#include "model/flat_optimizer.h"
#include "model/precision.h"
#include "numerics/own_operators.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kIgnored = -100;

struct Inputs {
  at::Tensor input, weight, bias, target;

  // Leaves of their own, of the same values.
  Inputs in(at::ScalarType type) const {
    const auto leaf = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      return tensor.detach().to(type, false, true).requires_grad_(tensor.requires_grad());
    };
    return {leaf(input), leaf(weight), leaf(bias), target};
  }
};

struct Case {
  std::int64_t rows = 1, features = 1, classes = 1;
  std::int64_t rows_of_chunk = 1;
  bool bias = false;
  double smoothing = 0;
  std::int64_t ignored_every = 0;  // 0: none
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.rows << " rows of " << c.features << ", " << c.classes << " classes, " << c.rows_of_chunk
             << " rows a chunk, smoothing " << c.smoothing << (c.bias ? ", bias" : "");
}

Inputs make_inputs(const Case& c) {
  torch::manual_seed(7);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  Inputs inputs{torch::randn({c.rows, c.features}, options).requires_grad_(),
                torch::randn({c.classes, c.features}, options).requires_grad_(),
                c.bias ? torch::randn({c.classes}, options).requires_grad_() : at::Tensor(),
                torch::randint(0, c.classes, {c.rows}, at::kLong)};
  for (std::int64_t i = 0; c.ignored_every > 0 && i < c.rows; i += c.ignored_every) inputs.target[i] = kIgnored;
  return inputs;
}

struct Results {
  at::Tensor loss, of_input, of_weight, of_bias;
};

Results results_of(const Inputs& inputs, const at::Tensor& loss) {
  (loss * 3).backward();
  const auto gradient = [](const at::Tensor& leaf) { return leaf.defined() ? leaf.grad() : at::Tensor(); };
  return {loss.detach(), gradient(inputs.input), gradient(inputs.weight), gradient(inputs.bias)};
}

Results unfused(const Inputs& inputs, at::Reduction::Reduction reduction, double smoothing) {
  const std::optional<at::Tensor> bias = inputs.bias.defined() ? std::optional<at::Tensor>(inputs.bias) : std::nullopt;
  return results_of(inputs, at::cross_entropy_loss(at::linear(inputs.input, inputs.weight, bias), inputs.target, {},
                                                   reduction, kIgnored, smoothing));
}

Results fused(const Inputs& inputs, at::Reduction::Reduction reduction, double smoothing, std::int64_t chunk_bytes) {
  return results_of(inputs, linear_cross_entropy(inputs.input, inputs.weight, inputs.target,
                                                 {.linear_bias = inputs.bias,
                                                  .reduction = reduction,
                                                  .label_smoothing = smoothing,
                                                  .chunk_bytes = chunk_bytes}));
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(found.defined(), expected.defined());
  if (!found.defined()) return;
  EXPECT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected.to(at::kDouble), tolerance, tolerance, /*equal_nan=*/true))
      << found << "\ninstead of\n"
      << expected;
}

void expect_near(const Results& found, const Results& expected, double tolerance) {
  expect_near(found.loss, expected.loss, tolerance);
  expect_near(found.of_input, expected.of_input, tolerance);
  expect_near(found.of_weight, expected.of_weight, tolerance);
  expect_near(found.of_bias, expected.of_bias, tolerance);
}

std::string refusal_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class LinearCrossEntropy : public testing::Test {
 protected:
  ~LinearCrossEntropy() override { at::set_num_threads(1); }
};

class LinearCrossEntropyCases : public LinearCrossEntropy, public testing::WithParamInterface<Case> {};

TEST_P(LinearCrossEntropyCases, IsLinearAndCrossEntropy) {
  const Case& c = GetParam();
  const Inputs inputs = make_inputs(c);
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
    const Results expected = unfused(inputs.in(at::kDouble), reduction, c.smoothing);
    // Scores of the kernels' type are in memory once, others with two more of float64.
    expect_near(fused(inputs.in(at::kDouble), reduction, c.smoothing, c.rows_of_chunk * c.classes * 24), expected,
                1e-11);
    const Results narrow = fused(inputs.in(at::kFloat), reduction, c.smoothing, c.rows_of_chunk * c.classes * 4);
    EXPECT_EQ(narrow.loss.scalar_type(), at::kFloat);
    EXPECT_EQ(narrow.of_weight.scalar_type(), at::kFloat);
    expect_near(narrow, expected, 2e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearCrossEntropyCases,
                         testing::Values(Case{1, 1, 1, 1}, Case{6, 3, 5, 2}, Case{7, 4, 10, 3, true},
                                         Case{7, 4, 10, 100, false, 0.1}, Case{33, 8, 65, 5, true, 0.3, 3},
                                         Case{16, 5, 300, 1, true, 1.0}, Case{9, 6, 40, 2, true, 0, 1},
                                         Case{0, 3, 4, 2, true}));

TEST_F(LinearCrossEntropy, OnlyTheGradientsThatAreNeeded) {
  Inputs inputs = make_inputs({9, 4, 11, 2, true});
  for (const int without : {0, 1, 2}) {
    Inputs some = inputs;
    (without == 0   ? some.input
     : without == 1 ? some.weight
                    : some.bias) = (without == 0   ? some.input
                                    : without == 1 ? some.weight
                                                   : some.bias)
                                       .detach();
    expect_near(fused(some.in(at::kDouble), at::Reduction::Mean, 0, 400),
                unfused(some.in(at::kDouble), at::Reduction::Mean, 0), 1e-11);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor loss = linear_cross_entropy(inputs.input, inputs.weight, inputs.target);
  EXPECT_FALSE(loss.requires_grad());
  expect_near(loss, at::cross_entropy_loss(at::linear(inputs.input, inputs.weight), inputs.target), 1e-11);
}

TEST_F(LinearCrossEntropy, TakesSequencesAndAnEmbeddingsWeight) {
  torch::manual_seed(3);
  const at::Tensor tokens = torch::randint(0, 50, {3, 9}, at::kLong);
  const at::Tensor original = torch::randn({50, 8}, at::kDouble);
  at::Tensor gradients[2];
  for (const bool is_fused : {false, true}) {
    const at::Tensor weight = original.clone().requires_grad_();
    int hooks = 0;
    weight.register_hook([&hooks](const at::Tensor&) { ++hooks; });
    const at::Tensor hidden = at::embedding(weight, tokens.narrow(1, 0, 8)).tanh();
    const at::Tensor target = tokens.narrow(1, 1, 8);
    const at::Tensor loss = is_fused
                                ? linear_cross_entropy(hidden, weight, target, {.chunk_bytes = 5000})
                                : at::cross_entropy_loss(at::linear(hidden, weight).flatten(0, 1), target.flatten());
    loss.backward();
    EXPECT_EQ(hooks, 1);
    gradients[is_fused] = weight.grad();
  }
  expect_near(gradients[1], gradients[0], 1e-11);
}

TEST_F(LinearCrossEntropy, BackwardMayBeRepeated) {
  const Inputs inputs = make_inputs({5, 4, 7, 2});
  const at::Tensor loss = linear_cross_entropy(inputs.input, inputs.weight, inputs.target);
  const auto first = torch::autograd::grad({loss}, {inputs.weight}, {}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({loss * 2}, {inputs.weight});
  expect_near(second[0], first[0] * 2, 1e-12);
}

TEST_F(LinearCrossEntropy, GradientsOfGradientsAreRefused) {
  const Inputs inputs = make_inputs({5, 4, 7, 2});
  const at::Tensor loss = linear_cross_entropy(inputs.input, inputs.weight, inputs.target);
  EXPECT_THAT(refusal_of([&] {
                torch::autograd::grad({loss}, {inputs.weight}, {}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              HasSubstr("linear_cross_entropy: backward with create_graph=True"));
}

TEST_F(LinearCrossEntropy, UnderAutocastProductsAreNarrowAndTheLossIsNot) {
  const Inputs inputs = make_inputs({40, 16, 90, 7, true, 0.1, 5});
  const Inputs narrow = inputs.in(at::kFloat), reference = inputs.in(at::kFloat);
  Results expected = unfused(reference.in(at::kDouble), at::Reduction::Mean, 0.1);
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16, at::kCPU);
    loss = linear_cross_entropy(narrow.input, narrow.weight, narrow.target,
                                {.linear_bias = narrow.bias, .label_smoothing = 0.1, .chunk_bytes = 7 * 90 * 2});
  }
  const Results found = results_of(narrow, loss);
  EXPECT_EQ(found.loss.scalar_type(), at::kFloat);
  EXPECT_EQ(found.of_input.scalar_type(), at::kFloat);
  EXPECT_EQ(found.of_weight.scalar_type(), at::kFloat);
  expect_near(found, expected, 0.05);
}

TEST_F(LinearCrossEntropy, AWeightInBfloat16HasAGradientInBfloat16) {
  const Inputs inputs = make_inputs({8, 4, 9, 3});
  const Results found = fused(inputs.in(at::kBFloat16), at::Reduction::Sum, 0, 3 * 9 * 2);
  EXPECT_EQ(found.loss.scalar_type(), at::kBFloat16);
  EXPECT_EQ(found.of_weight.scalar_type(), at::kBFloat16);
  expect_near(found, unfused(inputs.in(at::kBFloat16).in(at::kDouble), at::Reduction::Sum, 0), 0.1);
}

TEST_F(LinearCrossEntropy, DoesNotDependOnTheThreads) {
  const Inputs inputs = make_inputs({70, 24, 800, 9, false, 0.1});
  const Results one = fused(inputs.in(at::kFloat), at::Reduction::Mean, 0.1, 9 * 800 * 4);
  const Results again = fused(inputs.in(at::kFloat), at::Reduction::Mean, 0.1, 9 * 800 * 4);
  EXPECT_TRUE(at::equal(again.loss, one.loss));
  EXPECT_TRUE(at::equal(again.of_input, one.of_input));
  EXPECT_TRUE(at::equal(again.of_weight, one.of_weight));
  at::set_num_threads(2);
  expect_near(fused(inputs.in(at::kFloat), at::Reduction::Mean, 0.1, 9 * 800 * 4), one, 1e-5);
}

TEST_F(LinearCrossEntropy, WhatDoesNotFitIsAnError) {
  const Inputs inputs = make_inputs({5, 4, 7, 2});
  const auto error = [&](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
                         const LinearCrossEntropyOptions& options) {
    return refusal_of([&] { linear_cross_entropy(input, weight, target, options); });
  };
  const auto& [input, weight, bias, target] = inputs;
  EXPECT_THAT(error(input.narrow(1, 0, 3), weight, target, {}), HasSubstr("[5, 3], and the weight [7, 4]"));
  EXPECT_THAT(error(input, weight, target.narrow(0, 0, 4), {}), HasSubstr("[5, 4], and the target [4]"));
  EXPECT_THAT(error(input, weight, target, {.linear_bias = at::zeros({4})}), HasSubstr("and the bias [4]"));
  EXPECT_THAT(error(input, weight, target.to(at::kInt), {}), HasSubstr("the target is of type Int"));
  EXPECT_THAT(error(input, weight, target, {.reduction = at::Reduction::None}), HasSubstr("neither mean nor sum"));
  EXPECT_THAT(error(input, weight, target, {.label_smoothing = 1.5}), HasSubstr("label_smoothing is 1.5"));
  EXPECT_THAT(error(input, weight, target, {.chunk_bytes = 0}), HasSubstr("chunk_bytes is 0"));
  EXPECT_THAT(error(input.to(at::kFloat), weight, target, {}), HasSubstr("of type Float, and the weight Double"));
  EXPECT_THROW(linear_cross_entropy(input.to(at::kFloat), weight.to(at::kFloat), at::full({5}, 7, at::kLong)),
               c10::IndexError);
}

TEST_F(LinearCrossEntropy, ASumIsKnownAsOne) {
  const Inputs inputs = make_inputs({5, 4, 7, 2});
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
    const at::Tensor loss = linear_cross_entropy(inputs.input, inputs.weight, inputs.target, {.reduction = reduction});
    EXPECT_EQ(is_summed_linear_cross_entropy(loss.grad_fn().get()), reduction == at::Reduction::Sum);
  }
}

// Follows what the thread's allocations of host memory take.
class Allocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    if (bytes > 0) {
      sizes_[data] = bytes;
      now_ += bytes;
    } else if (const auto found = sizes_.find(data); found != sizes_.end()) {
      now_ -= found->second;
      sizes_.erase(found);
    }
    largest_ = std::max(largest_, bytes);
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t largest() const { return largest_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::map<void*, std::int64_t> sizes_;
  std::int64_t now_ = 0, largest_ = 0, peak_ = 0;
};

std::shared_ptr<Allocations> allocations_of(const std::function<void()>& work) {
  auto allocations = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
  work();
  return allocations;
}

TEST_F(LinearCrossEntropy, TheScoresAreNeverInMemoryAtOnce) {
  constexpr std::int64_t kRows = 600, kClasses = 500;
  constexpr std::int64_t kScores = kRows * kClasses * 4;
  at::set_num_threads(1);  // the allocations of this thread are counted
  const Inputs inputs = make_inputs({kRows, 8, kClasses, 1}).in(at::kFloat);
  const auto ours = allocations_of([&] { fused(inputs.in(at::kFloat), at::Reduction::Mean, 0, kScores / 20); });
  const auto libtorchs = allocations_of([&] { unfused(inputs.in(at::kFloat), at::Reduction::Mean, 0); });
  EXPECT_GE(libtorchs->largest(), kScores);
  EXPECT_LE(ours->largest(), kScores / 20 + 64);
  EXPECT_GE(libtorchs->peak(), 2 * kScores);
  EXPECT_LE(ours->peak(), kScores / 4);
}

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(40, 12));
    layer = register_module("layer", torch::nn::Linear(12, 12));
    bias = register_parameter("bias", torch::zeros({40}));
  }
  at::Tensor loss(const at::Tensor& inputs, bool is_fused) {
    const at::Tensor hidden = layer(tokens(inputs.slice(1, 0, -1))).tanh(), target = inputs.slice(1, 1);
    if (is_fused) {
      return linear_cross_entropy(hidden, tokens->weight, target, {.linear_bias = bias, .chunk_bytes = 3 * 40 * 4});
    }
    return at::cross_entropy_loss(at::linear(hidden, tokens->weight, bias).flatten(0, 1), target.flatten());
  }
  torch::nn::Embedding tokens{nullptr};
  torch::nn::Linear layer{nullptr};
  at::Tensor bias;
};
TORCH_MODULE(LanguageModel);

// Seven steps with buckets that leave during backward.
std::vector<at::Tensor> trained_parameters(int ranks, bool is_fused) {
  std::vector<at::Tensor> result;
  test::run_communicator_ranks(test::TestWorld(ranks), "thread", [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    LanguageModel model;
    {
      const at::NoGradGuard no_grad;
      auto generator = at::detail::createCPUGenerator(5);
      for (at::Tensor& parameter : model->parameters()) parameter.uniform_(-0.5, 0.5, generator);
    }
    FlatParameters flat(*model, communicator);
    FlatOptimizer optimizer(AdamW{.lr = 0.01}, nullptr, flat);
    const auto plan = comm::plan_fusion(items_of(flat), 1000);
    EXPECT_GT(plan.buckets.size(), 1U);
    const SystemClock clock;
    profile::Recorder recorder({}, clock, clock.monotonic());
    GradientExchange exchange(flat, communicator, communicator, recorder);
    const GradientHooks hooks(flat, exchange);
    const FixedScale scale(1.0 / ranks);
    Replicated strategy(flat, optimizer, communicator, recorder, scale);
    strategy.set_plan(plan);
    exchange.use(strategy, plan);
    for (int step = 0; step < 7; ++step) {
      auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * rank + step));
      exchange.begin_batch(true);
      exchange.backward(model->loss(torch::randint(0, 40, {2, 9}, generator, at::kLong), is_fused));
      const auto used = exchange.finish();
      strategy.update({used, 1, 0});
      exchange.end_window();
      optimizer.advance_schedule();
    }
    if (rank != 0) return;
    for (const at::Tensor& parameter : model->parameters()) result.push_back(parameter.detach().clone());
  });
  return result;
}

TEST_F(LinearCrossEntropy, RanksTrainToWhatTheyTrainToUnfused) {
  for (const int ranks : {1, 2}) {
    const auto found = trained_parameters(ranks, true), expected = trained_parameters(ranks, false);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) expect_near(found[i], expected[i], 1e-3);
  }
}

}  // namespace
}  // namespace dtrain::train
