// dtrain::checkpoint(): what is computed twice must be what would be computed once, in less memory.
#include <atomic>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>

#include "checkpointed_model.h"
#include "dtrain/base/error.h"
#include "exchange/gradient_exchange.h"
#include "exchange/replicated.h"
#include "harness/run_ranks.h"
#include "model/flat_optimizer.h"
#include "model/gradient_checkpointing.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

using testing::HasSubstr;

CheckpointedModel make_model(const CheckpointedModelImpl::Options& options) {
  torch::manual_seed(5);
  CheckpointedModel model(options);
  watch_buffers_of(model.ptr());
  return model;
}

class AutocastScope {
 public:
  explicit AutocastScope(bool enabled) : enabled_(enabled) {
    if (!enabled_) return;
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastScope() {
    if (!enabled_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool enabled_;
};

std::vector<at::Tensor> one_step(const CheckpointedModelImpl::Options& options, bool checkpointed, bool autocast) {
  auto model = make_model(options);
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({24, options.width});
  at::Tensor loss;
  {
    const AutocastScope scope(autocast);
    loss = model->loss(x, checkpointed);
  }
  loss.backward();
  auto results = results_of(model, loss);
  results.push_back(torch::rand({3}));  // the random stream goes on as if nothing had been computed again
  for (const auto& block : model->blocks) EXPECT_EQ(block->calls, checkpointed ? 2 : 1);
  return results;
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(GradientCheckpointing, GivesTheSameBits) {
  for (const double dropout : {0.0, 0.4}) {
    for (const bool autocast : {false, true}) {
      SCOPED_TRACE(testing::Message() << "dropout " << dropout << (autocast ? ", autocast" : ""));
      const CheckpointedModelImpl::Options options{.dropout = dropout};
      const auto got = one_step(options, true, autocast);
      const auto expected = one_step(options, false, autocast);
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
    }
  }
}

TEST(GradientCheckpointing, AutocastIsTheOneOfForwardAndEndsWithTheRecomputation) {
  const auto weight = torch::randn({8, 8}, at::TensorOptions().requires_grad(true));
  std::vector<at::ScalarType> types;
  at::Tensor out;
  {
    const AutocastScope scope(true);
    out = checkpoint(
        [&](const at::Tensor& x) {
          const auto product = x.matmul(weight);
          types.push_back(product.scalar_type());
          return product.tanh() * 2;
        },
        torch::randn({4, 8}));
  }
  out.sum().backward();
  EXPECT_THAT(types, testing::ElementsAre(at::kBFloat16, at::kBFloat16));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

// Live bytes of this thread's tensors, as libtorch reports them to a profiler.
class MemoryCount final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t live_ = 0, peak_ = 0;
};

std::int64_t peak_of(CheckpointedModel& model, const at::Tensor& x, bool checkpointed) {
  model->zero_grad();
  const auto count = std::make_shared<MemoryCount>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, count);
  model->loss(x, checkpointed).backward();
  return count->peak();
}

TEST(GradientCheckpointing, TakesTheMemoryOfOneBlockInsteadOfAll) {
  const CheckpointedModelImpl::Options options{.width = 16, .blocks = 12, .dropout = 0.1};
  auto model = make_model(options);
  const std::int64_t samples = 4096;
  const at::Tensor x = torch::randn({samples, options.width});
  const std::int64_t all = peak_of(model, x, false);
  const std::int64_t one = peak_of(model, x, true);
  // A block keeps at least three tensors of 4 * width (before GELU, before dropout, after it) and is fed one of width.
  const std::int64_t wide = samples * 4 * options.width * 4;
  EXPECT_GT(all, 12 * 3 * wide);
  EXPECT_LT(one, 12 * wide / 4 + 8 * wide) << "all: " << all;
}

TEST(GradientCheckpointing, SeveralTensorsInAndOut) {
  const auto a = torch::randn({3, 4}, at::TensorOptions().requires_grad(true));
  const auto b = torch::randn({3, 4}, at::TensorOptions().requires_grad(true));
  const auto fn = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    EXPECT_FALSE(in[2].defined());
    return {in[0].sin() * in[1], in[1].exp()};
  };
  const auto gradients = [&](const std::vector<at::Tensor>& out) {
    return torch::autograd::grad({(out[0] * out[1]).sum()}, {a, b});
  };
  const auto got = gradients(checkpoint(fn, {a, b, at::Tensor()}));
  const auto expected = gradients(fn({a, b, at::Tensor()}));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
  const at::Tensor one = checkpoint([](const std::vector<at::Tensor>& in) { return in[0] * in[1]; }, {a, b});
  EXPECT_TRUE(torch::equal(one, a * b));
}

TEST(GradientCheckpointing, PartsMayBeNestedAndGoneThroughTwice) {
  const auto x = torch::randn({5, 6}, at::TensorOptions().requires_grad(true));
  int inner_calls = 0, outer_calls = 0;
  const auto inner = [&](const at::Tensor& y) {
    ++inner_calls;
    return y.sin().exp();
  };
  const auto outer = [&](const at::Tensor& y) {
    ++outer_calls;
    return checkpoint(inner, y.tanh()).cos() * y;
  };
  const auto loss = checkpoint(outer, x).sum();
  const auto expected = torch::autograd::grad({((x.tanh().sin().exp()).cos() * x).sum()}, {x})[0];
  EXPECT_EQ(outer_calls, 1);
  EXPECT_TRUE(torch::equal(torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0], expected));
  EXPECT_EQ(outer_calls, 2);
  EXPECT_EQ(inner_calls, 3) << "forward, with the outer part, and for itself";
  EXPECT_TRUE(torch::equal(torch::autograd::grad({loss}, {x})[0], expected));
  EXPECT_EQ(outer_calls, 3);
}

TEST(GradientCheckpointing, EndsWhenNothingIsMissing) {
  const auto x = torch::randn({5}, at::TensorOptions().requires_grad(true));
  int begun = 0, ended = 0;
  const auto y = checkpoint(
      [&](const at::Tensor& in) {
        ++begun;
        const auto out = in.sin().cos() + 1;  // the sum needs nothing in backward
        ++ended;
        return out;
      },
      x);
  y.sum().backward();
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(ended, 1);
}

TEST(GradientCheckpointing, WithoutGradientsItIsTheFunction) {
  const auto x = torch::randn({5}, at::TensorOptions().requires_grad(true));
  const at::NoGradGuard no_grad;
  int calls = 0;
  const auto y = checkpoint(
      [&](const at::Tensor& in) {
        ++calls;
        return in.sin();
      },
      x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(calls, 1);
}

TEST(GradientCheckpointing, WhatIsKeptIsReleasedWithTheGraph) {
  const auto alive = std::make_shared<int>(1);
  {
    const auto x = torch::randn({5}, at::TensorOptions().requires_grad(true));
    const auto y = checkpoint([alive](const at::Tensor& in) { return in.sin().cos(); }, x);
    EXPECT_GT(alive.use_count(), 1);
    y.sum().backward();
    EXPECT_EQ(alive.use_count(), 1) << "backward releases it";
    checkpoint([alive](const at::Tensor& in) { return in.sin().cos(); }, x);
    EXPECT_EQ(alive.use_count(), 1) << "so does a graph that is not used";
  }
}

TEST(GradientCheckpointing, FunctionsThatCannotBeComputedAgainAreRefused) {
  const auto x = torch::randn({5}, at::TensorOptions().requires_grad(true)) * 1;
  EXPECT_THAT(error_of([&] { checkpoint([](const at::Tensor& in) { return at::Tensor(in).relu_() * 2; }, x); }),
              HasSubstr("has written its input 0 in place"));
  const auto y = torch::randn({5}, at::TensorOptions().requires_grad(true));
  EXPECT_THAT(
      error_of([&] {
        checkpoint(
            [](const at::Tensor& in) { return torch::autograd::grad({in.sin().sum()}, {in}, {}, true, true)[0]; }, y);
      }),
      HasSubstr("computes gradients itself"));
  const auto backward_of = [&](const std::function<at::Tensor(const at::Tensor&, int)>& fn) {
    return error_of([&] {
      int calls = 0;
      checkpoint([&](const at::Tensor& in) { return fn(in, calls++); }, y).sum().backward();
    });
  };
  EXPECT_THAT(backward_of([](const at::Tensor& in, int call) { return call == 0 ? in.sin().cos() : in.sin(); }),
              HasSubstr("has saved 1 tensors for its gradients in backward, and 2 in forward"));
  EXPECT_THAT(backward_of([](const at::Tensor& in, int call) { return in.narrow(0, 0, 4 - call).sin(); }),
              HasSubstr("has computed Float[3] in backward where it computed Float[4] in forward"));
  EXPECT_THAT(backward_of([](const at::Tensor& in, int) {
                at::Tensor saved = in.exp();
                return saved.mul_(2).sin();
              }),
              HasSubstr("has written Float[5] in place, which its gradients need"));
  EXPECT_THAT(backward_of([](const at::Tensor& in, int call) {
                if (call > 0) throw Error("something of its own");
                return in.sin();
              }),
              HasSubstr("something of its own"));
  // Nothing of it is left.
  y.sin().sum().backward();
  EXPECT_TRUE(torch::equal(y.grad(), y.cos().detach()));
}

// Seven steps with buckets that leave during backward.
std::vector<std::vector<at::Tensor>> train_ranks(int ranks, bool checkpointed) {
  const auto original = make_model({});
  std::vector<std::vector<at::Tensor>> results(static_cast<std::size_t>(ranks));
  test::run_communicator_ranks(test::TestWorld(ranks), "thread", [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    CheckpointedModel model(CheckpointedModelImpl::Options{});
    watch_buffers_of(model.ptr());
    {
      const at::NoGradGuard no_grad;
      const auto from = original->parameters();
      auto to = model->parameters();
      for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
    FlatParameters flat(*model, communicator);
    FlatOptimizer optimizer(AdamW{.lr = 0.01}, nullptr, flat);
    const auto plan = comm::plan_fusion(items_of(flat), 2000);
    EXPECT_GT(plan.buckets.size(), 4U);
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
      exchange.backward(model->loss(torch::randn({6, 16}, generator), checkpointed));
      const auto used = exchange.finish();
      strategy.update({used, 1, 0});
      exchange.end_window();
      optimizer.advance_schedule();
    }
    auto& result = results[static_cast<std::size_t>(rank)];
    for (const at::Tensor& parameter : model->parameters()) result.push_back(parameter.detach().clone());
    for (const at::Tensor& buffer : model->buffers()) result.push_back(buffer.clone());
  });
  return results;
}

TEST(GradientCheckpointing, RanksTrainToTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    const auto got = train_ranks(ranks, true);
    const auto expected = train_ranks(ranks, false);
    for (std::size_t rank = 0; rank < got.size(); ++rank) {
      ASSERT_EQ(got[rank].size(), expected[rank].size());
      for (std::size_t i = 0; i < got[rank].size(); ++i) {
        EXPECT_TRUE(torch::equal(got[rank][i], expected[rank][i])) << ranks << " ranks, tensor " << i;
      }
    }
    EXPECT_FALSE(torch::equal(got[0][0], make_model({})->parameters()[0])) << "nothing was trained";
  }
}

}  // namespace
}  // namespace dtrain::train
