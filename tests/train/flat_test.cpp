// Flat parameters, the optimizers on them, clipping and the exchange, against libtorch's own on ordinary tensors.
#include <random>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "dtrain/comm/fusion_plan.h"
#include "flat_optimizer.h"
#include "flat_parameters.h"
#include "gradient_exchange.h"
#include "gradient_norm.h"
#include "harness/run_ranks.h"
#include "replicated.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

std::unique_ptr<comm::Communicator> alone() {
  return std::move(comm::make_thread_communicators(1, test::TestWorld(1).communicator_options()).front());
}

std::vector<std::string> names(const FlatParameters& flat) {
  std::vector<std::string> result;
  for (const auto& p : flat.parameters()) result.push_back(p.name);
  return result;
}

TEST(FlatParameters, LaysEachDistinctTrainableParameterOutOnce) {
  torch::manual_seed(1);
  Model model;
  const auto before = model->first.clone();
  const auto transposed = model->transposed.clone();
  const auto communicator = alone();
  FlatParameters flat(*model, *communicator);
  EXPECT_EQ(names(flat), (std::vector<std::string>{"scalar", "transposed", "wide", "second", "first"}));
  EXPECT_EQ(flat.total_elements(), 1 + 35 + 9 + 17 + 15);
  EXPECT_EQ(flat.total_bytes(), 4 * (1 + 35 + 17 + 15) + 8 * 9);
  ASSERT_EQ(flat.groups().size(), 2u);
  EXPECT_EQ(flat.groups()[0].dtype, at::kFloat);
  EXPECT_EQ(flat.groups()[0].values.numel(), 16 + 48 + 32 + 16);
  EXPECT_EQ(flat.groups()[1].values.numel(), 16);
  for (const auto& p : flat.parameters()) {
    const auto& group = flat.groups()[p.group];
    EXPECT_EQ(p.offset * group.element_size % 64, 0) << p.name;
    const auto* base = static_cast<const std::byte*>(group.values.data_ptr());
    EXPECT_EQ(p.tensor.data_ptr(), base + p.offset * group.element_size) << p.name;
    EXPECT_EQ(p.gradient.strides(), p.tensor.strides()) << p.name;
  }
  EXPECT_TRUE(torch::equal(model->first, before));
  EXPECT_TRUE(torch::equal(model->transposed, transposed));
  EXPECT_FALSE(model->transposed.is_contiguous());
  EXPECT_EQ(model->tied.data_ptr(), model->first.data_ptr());
  EXPECT_TRUE(model->first.is_leaf() && model->first.requires_grad());
  // Padding is zero.
  EXPECT_EQ(flat.groups()[0].values.count_nonzero().item<std::int64_t>(), 1 + 35 + 17 + 15);
}

TEST(FlatParameters, RefusesWhatItCannotTrain) {
  const auto communicator = alone();
  torch::nn::Linear frozen(2, 2);
  for (auto& p : frozen->parameters()) p.set_requires_grad(false);
  EXPECT_THROW(FlatParameters(*frozen, *communicator), ConfigError);
  torch::nn::Linear half(2, 2);
  half->to(torch::kBFloat16);
  try {
    FlatParameters flat(*half, *communicator);
    FAIL() << "bfloat16 was accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("BFloat16"), std::string::npos) << error.what();
  }
}

TEST(FusionPlan, BucketsOfAModelCoverItWithoutOverlap) {
  std::vector<comm::FusionItem> items;
  std::int64_t at[2] = {0, 0};
  for (int i = 0; i < 20; ++i) {
    const std::size_t group = i % 3 == 0;
    const std::int64_t size = 16 * (1 + i % 5);
    items.push_back({group, at[group], at[group] + size, group ? 8 : 4});
    at[group] += size;
  }
  for (const std::int64_t threshold : {0, 200, 500, 1 << 20}) {
    const auto plan = comm::plan_fusion(items, threshold);
    std::vector<int> seen(items.size());
    std::size_t last = 0;
    for (const auto& bucket : plan.buckets) {
      std::int64_t expected = items[bucket.items.front()].begin;
      EXPECT_EQ(bucket.begin, expected);
      for (const std::size_t i : bucket.items) {
        ++seen[i];
        EXPECT_EQ(items[i].group, bucket.group);
        EXPECT_EQ(items[i].begin, expected);
        expected = items[i].end;
      }
      EXPECT_EQ(bucket.end, expected);
      EXPECT_EQ(bucket.bytes, (bucket.end - bucket.begin) * items[bucket.items.front()].element_size);
      EXPECT_GE(bucket.items.back(), last);
      last = bucket.items.back();
    }
    EXPECT_EQ(seen, std::vector<int>(items.size(), 1)) << threshold;
    if (threshold == 0) {
      EXPECT_EQ(plan.buckets.size(), items.size());
    }
    if (threshold == 1 << 20) {
      EXPECT_EQ(plan.buckets.size(), 2u);
    }
  }
}

// The reference: libtorch's own optimizer on a copy of the model. Every third step leaves `second` without a gradient,
// the first one too, so it is updated less often than the others.
template <typename MakeReference>
void compare_with_reference(const Optimizer& optimizer, double schedule_gamma, const MakeReference& make_reference) {
  torch::manual_seed(7);
  Model ours;
  Model theirs = copy_of(ours);
  const auto communicator = alone();
  FlatParameters flat(*ours, *communicator);
  FlatOptimizer flat_optimizer(optimizer, lr::step(10, schedule_gamma), flat);
  std::vector<at::Tensor> trainable;
  for (const auto& p : distinct_parameters(*theirs)) {
    if (p.tensor.requires_grad()) trainable.push_back(p.tensor);
  }
  const auto reference = make_reference(trainable);
  const double base_rate = flat_optimizer.learning_rate();
  for (int step = 0; step < 25; ++step) {
    const bool use_second = step % 3 != 0;
    EXPECT_DOUBLE_EQ(flat_optimizer.learning_rate(), base_rate * std::pow(schedule_gamma, step / 10));
    reference->param_groups()[0].options().set_lr(flat_optimizer.learning_rate());
    reference->zero_grad();
    theirs->loss(0.1 * step + 0.5, use_second).backward();
    reference->step();

    for (auto& p : flat.parameters()) p.tensor.mutable_grad() = at::Tensor();
    ours->loss(0.1 * step + 0.5, use_second).backward();
    std::vector<std::uint8_t> used;
    for (auto& p : flat.parameters()) {
      used.push_back(p.tensor.grad().defined());
      if (used.back()) p.gradient.copy_(p.tensor.grad());
    }
    flat_optimizer.begin_step(used);
    for (std::size_t g = 0; g < flat.groups().size(); ++g) {
      const std::int64_t count = flat.groups()[g].values.numel();
      flat_optimizer.update({g, 0, 16});  // in pieces or at once: the same
      flat_optimizer.update({g, 16, count});
    }
    flat_optimizer.end_step(used);
    flat_optimizer.advance_schedule();
  }
  EXPECT_EQ(flat_optimizer.steps(), 25);
  const auto got = ours->named_parameters();
  for (const auto& item : theirs->named_parameters()) {
    const double difference =
        (got[item.key()] - item.value()).norm().item<double>() / item.value().norm().item<double>();
    EXPECT_LT(difference, 1e-6) << item.key();
  }
  for (const auto& group : flat.groups()) {
    std::int64_t real = 0;
    for (const auto& p : flat.parameters()) {
      if (&flat.groups()[p.group] == &group) real += p.tensor.numel();
    }
    EXPECT_EQ(group.values.count_nonzero().item<std::int64_t>(), real) << "padding did not stay zero";
  }
}

TEST(FlatOptimizer, SgdIsLibtorchs) {
  using Options = torch::optim::SGDOptions;
  compare_with_reference(Sgd{.lr = 0.01}, 1,
                         [](auto& p) { return std::make_unique<torch::optim::SGD>(p, Options(0.01)); });
  compare_with_reference(Sgd{.lr = 0.01, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.02}, 0.5, [](auto& p) {
    return std::make_unique<torch::optim::SGD>(p, Options(0.01).momentum(0.9).dampening(0.1).weight_decay(0.02));
  });
  compare_with_reference(Sgd{.lr = 0.01, .momentum = 0.9, .nesterov = true}, 0.5, [](auto& p) {
    return std::make_unique<torch::optim::SGD>(p, Options(0.01).momentum(0.9).nesterov(true));
  });
}

TEST(FlatOptimizer, AdamAndAdamWAreLibtorchs) {
  compare_with_reference(Adam{.lr = 0.003, .beta1 = 0.8, .weight_decay = 0.02}, 0.5, [](auto& p) {
    return std::make_unique<torch::optim::Adam>(
        p, torch::optim::AdamOptions(0.003).betas({0.8, 0.999}).weight_decay(0.02));
  });
  compare_with_reference(AdamW{.lr = 0.003, .eps = 1e-6, .weight_decay = 0.05}, 0.5, [](auto& p) {
    return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.003).eps(1e-6).weight_decay(0.05));
  });
}

TEST(FlatOptimizer, RefusesImpossibleSettings) {
  Model model;
  const auto communicator = alone();
  FlatParameters flat(*model, *communicator);
  EXPECT_THROW(FlatOptimizer(Sgd{.lr = -1}, nullptr, flat), ConfigError);
  EXPECT_THROW(FlatOptimizer(Sgd{.momentum = 0, .nesterov = true}, nullptr, flat), ConfigError);
}

double norm_of(const FlatParameters& flat, const std::vector<FlatRange>& ranges) {
  std::vector<NormBranch> branches;
  std::vector<double> sums;
  for (const FlatRange& range : ranges) {
    for (const NormBranch& branch : branches_of(range, flat.groups()[range.group].element_size)) {
      branches.push_back(branch);
      sums.push_back(sum_of_squares(flat, branch));
    }
  }
  return std::sqrt(combine(branches, sums));
}

std::vector<FlatRange> everything(const FlatParameters& flat) {
  std::vector<FlatRange> ranges;
  for (std::size_t g = 0; g < flat.groups().size(); ++g) ranges.push_back({g, 0, flat.groups()[g].values.numel()});
  return ranges;
}

TEST(GradientNorm, ClipsAsPyTorchDoes) {
  for (const double max_norm : {0.5, 1e6}) {
    torch::manual_seed(3);
    Model model;
    const auto communicator = alone();
    FlatParameters flat(*model, *communicator);
    std::vector<at::Tensor> copies;
    for (auto& p : flat.parameters()) {
      p.gradient.copy_(torch::randn(p.tensor.sizes(), p.tensor.options()));
      copies.push_back(p.tensor.detach().clone());
      copies.back().mutable_grad() = p.gradient.clone();
    }
    const double expected = torch::nn::utils::clip_grad_norm_(copies, max_norm);
    const double norm = norm_of(flat, everything(flat));
    EXPECT_NEAR(norm, expected, 1e-5 * expected);
    const double factor = clip_factor(norm, max_norm);
    EXPECT_EQ(factor == 1, max_norm == 1e6);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      EXPECT_TRUE(torch::allclose(flat.parameters()[i].gradient * factor, copies[i].grad(), 1e-6, 0));
    }
  }
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1), 1);
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1), 1);
}

// Numbers of very different size, so that another order of summation would show.
TEST(GradientNorm, IsTheSameHoweverItIsDivided) {
  torch::manual_seed(5);
  torch::nn::Linear model(613, 37);
  const auto communicator = alone();
  FlatParameters flat(*model, *communicator);
  auto& group = flat.groups()[0];
  const std::int64_t lines = group.values.numel() / 16;
  group.gradients.copy_(torch::randn({lines * 16}) * torch::pow(10, torch::rand({lines * 16}) * 12 - 6));
  const double whole = norm_of(flat, everything(flat));
  EXPECT_NEAR(whole, group.gradients.to(torch::kDouble).norm().item<double>(), 1e-12 * whole);
  double forward = 0;
  for (std::int64_t i = 0; i < group.gradients.numel(); ++i) {
    const double value = group.gradients.data_ptr<float>()[i];
    forward += value * value;
  }
  EXPECT_NE(std::sqrt(forward), whole) << "these numbers cannot tell orders apart";
  std::mt19937 random(1);
  for (int parts : {2, 3, 7, 64}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<std::int64_t> cuts{0, lines};
      for (int i = 1; i < parts; ++i) cuts.push_back(static_cast<std::int64_t>(random() % (lines + 1)));
      std::sort(cuts.begin(), cuts.end());
      std::vector<FlatRange> ranges;
      for (int i = 0; i < parts; ++i) ranges.push_back({0, cuts[i] * 16, cuts[i + 1] * 16});
      EXPECT_EQ(norm_of(flat, ranges), whole);
    }
  }
}

// Three thread ranks; a window of two batches; only rank 1 uses `second`, and only in the first batch. The small
// threshold makes several buckets, the large one a bucket a dtype.
TEST(Replicated, SumsWindowsOverRanksAndKnowsWhatWasUsed) {
  for (const std::int64_t threshold : {0, 100, 1 << 20}) {
    const int ranks = 3;
    std::vector<std::map<std::string, at::Tensor>> results(ranks);
    torch::manual_seed(11);
    const Model original;
    test::run_communicator_ranks(test::TestWorld(ranks), "thread", [&](comm::Communicator& communicator) {
      const int rank = communicator.rank();
      Model model = copy_of(original);
      FlatParameters flat(*model, communicator);
      const auto items = items_of(flat);
      const auto plan = comm::plan_fusion(items, threshold);
      const SystemClock clock;
      profile::Recorder recorder({}, clock, clock.monotonic());
      FlatOptimizer optimizer(Sgd{}, nullptr, flat);
      Replicated strategy(flat, optimizer, communicator, recorder, 1.0 / (2 * ranks));
      strategy.set_plan(plan);
      GradientExchange exchange(flat, communicator, recorder);
      exchange.use(strategy, plan);
      const Hooks hooks(flat, exchange);
      for (int window = 0; window < 2; ++window) {
        for (int batch = 0; batch < 2; ++batch) {
          exchange.begin_batch(batch == 1);
          model->loss(1 + rank + 10 * batch, rank == 1 && batch == 0 && window == 0).backward();
        }
        const auto used = exchange.finish();
        for (std::size_t i = 0; i < items.size(); ++i) {
          const auto& p = flat.parameters()[i];
          EXPECT_EQ(used[i] != 0, p.name != "second" || window == 0) << p.name << " in window " << window;
          EXPECT_EQ(p.tensor.grad().defined(), used[i] != 0);
          if (window == 0) results[rank][p.name] = p.gradient.clone();
          if (window == 1 && used[i]) {
            EXPECT_TRUE(torch::equal(p.gradient, results[rank][p.name])) << p.name;
          }
        }
        exchange.end_window();
      }
    });
    Model model = copy_of(original);
    for (int rank = 0; rank < ranks; ++rank) {
      for (int batch = 0; batch < 2; ++batch) {
        (model->loss(1 + rank + 10 * batch, rank == 1 && batch == 0) / (2 * ranks)).backward();
      }
    }
    for (const auto& p : distinct_parameters(*model)) {
      if (!p.tensor.requires_grad()) continue;
      const std::string& name = p.names.front();
      EXPECT_TRUE(torch::allclose(results[0].at(name), p.tensor.grad(), 1e-5, 1e-6)) << name;
      for (int rank = 1; rank < ranks; ++rank)
        EXPECT_TRUE(torch::equal(results[rank].at(name), results[0].at(name))) << name;
    }
  }
}

TEST(Replicated, RefusesTwoBackwardsInOneBatch) {
  Model model;
  const auto communicator = alone();
  FlatParameters flat(*model, *communicator);
  const comm::FusionPlan plan{{{0, 0, flat.groups()[0].values.numel(), 0, {0, 1, 2, 3, 4}}}};
  const SystemClock clock;
  profile::Recorder recorder({}, clock, clock.monotonic());
  FlatOptimizer optimizer(Sgd{}, nullptr, flat);
  Replicated strategy(flat, optimizer, *communicator, recorder, 1);
  GradientExchange exchange(flat, *communicator, recorder);
  exchange.use(strategy, plan);
  exchange.begin_batch(false);
  flat.parameters()[0].tensor.mutable_grad() = torch::ones({});
  exchange.gradient_ready(0);
  EXPECT_THROW(exchange.gradient_ready(0), Error);
}

}  // namespace
}  // namespace dtrain::train
