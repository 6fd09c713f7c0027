// Flat parameters, the optimizers on them, clipping and the exchange, against libtorch's own on ordinary tensors.
#include <functional>
#include <map>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "dtrain/comm/fusion_plan.h"
#include "exchange/gradient_exchange.h"
#include "exchange/replicated.h"
#include "harness/run_ranks.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/gradient_norm.h"
#include "no_common_memory.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

std::unique_ptr<comm::Communicator> alone() {
  return std::move(test::make_thread_communicators(1, test::TestWorld(1).communicator_options()).front());
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
  torch::nn::Linear complex(2, 2);
  complex->to(torch::kComplexFloat);
  try {
    FlatParameters flat(*complex, *communicator);
    FAIL() << "complex numbers were accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.remedy().find("torch.view_as_complex(parameter)"), std::string::npos) << error.remedy();
  }
}

struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(bool one_tensor) {
    torch::manual_seed(4);
    const auto values = torch::randn({3}, torch::kFloat64);
    first = register_parameter("first", torch::randn({4, 3}, torch::kFloat64));
    if (one_tensor) {
      second = register_parameter("second", first);
    } else {
      second = register_parameter("second", torch::randn({4, 3}, torch::kFloat64));
      second.set_data(first.detach());
    }
    other = register_parameter("other", values);
    view = register_buffer("view", first.detach());
  }
  torch::Tensor loss(double x) { return (first * x).sin().sum() + (second * second * x).sum() * other.sum(); }
  torch::Tensor first, second, other, view;
};
TORCH_MODULE(Tied);

TEST(FlatParameters, KeepTensorsInTheSameMemoryTogether) {
  const auto communicator = alone();
  Tied model(false);
  const auto before = model->first.detach().clone();
  FlatParameters flat(*model, *communicator);
  EXPECT_EQ(names(flat), (std::vector<std::string>{"other", "first"}));
  EXPECT_EQ(model->second.data_ptr(), model->first.data_ptr());
  EXPECT_EQ(model->view.data_ptr(), model->first.data_ptr());
  flat.place_values(0, flat.groups()[0].values.clone());
  EXPECT_EQ(model->second.data_ptr(), model->first.data_ptr());
  EXPECT_EQ(model->view.data_ptr(), model->first.data_ptr());
  EXPECT_TRUE(torch::equal(model->second, before));
  ASSERT_EQ(distinct_parameters(*model).size(), 2u);
  EXPECT_EQ(distinct_parameters(*model)[0].names, (std::vector<std::string>{"first", "second"}));
}

TEST(FlatParameters, RefuseTensorsThatShareAPartOfTheirMemory) {
  const auto communicator = alone();
  const auto whole = torch::randn({10});
  for (const bool buffer : {false, true}) {
    torch::nn::Module model;
    model.register_parameter("upper", whole.narrow(0, 4, 6).detach());
    const auto lower = whole.narrow(0, 0, 5).detach();
    if (buffer) {
      model.register_buffer("lower", lower);
    } else {
      model.register_parameter("lower", lower);
    }
    try {
      FlatParameters flat(model, *communicator);
      FAIL() << "was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("'lower' and 'upper'"), std::string::npos) << error.what();
    }
  }
  torch::nn::Module apart;  // neighbours in one storage
  apart.register_parameter("upper", whole.narrow(0, 5, 5).detach());
  apart.register_parameter("lower", whole.narrow(0, 0, 5).detach());
  EXPECT_EQ(FlatParameters(apart, *communicator).parameters().size(), 2u);
}

TEST(FlatMemory, GivesZeroedMemoryOfEachKind) {
  test::run_communicator_ranks(test::TestWorld(2), "shm", [](comm::Communicator& communicator) {
    FlatMemory memory(communicator, at::kCPU);
    const at::Tensor own = memory.own(48, at::kDouble);
    EXPECT_EQ(own.count_nonzero().item<std::int64_t>(), 0);
    EXPECT_EQ(FlatMemory::address(own, 3), FlatMemory::address(own) + 24);
    own.fill_(1);
    FlatMemory::clear(own, 16, 32);
    EXPECT_EQ(own.sum().item<double>(), 16);
    EXPECT_TRUE(torch::equal(memory.own_copy(own), own));
    EXPECT_EQ(memory.own(0, at::kFloat).numel(), 0);

    const auto exchanged = memory.exchanged(16, at::kFloat);
    EXPECT_EQ(exchanged.tensor.numel(), 16);
    EXPECT_EQ(exchanged.tensor.count_nonzero().item<std::int64_t>(), 0);
    EXPECT_EQ(FlatMemory::address(exchanged.tensor), exchanged.buffer->bytes().data());

    const auto common = memory.common(16, at::kFloat);
    ASSERT_TRUE(common);
    if (communicator.rank() == 1) common->tensor.fill_(7);
    communicator.barrier().wait();
    EXPECT_EQ(common->tensor.sum().item<double>(), 7 * 16);

    NoCommonMemory without(communicator);
    EXPECT_FALSE(FlatMemory(without, at::kCPU).common(16, at::kFloat));
  });
}

// What a step needs besides a model, for one rank.
struct Stepper {
  explicit Stepper(torch::nn::Module& model)
      : communicator(alone()),
        flat(model, *communicator),
        plan(comm::plan_fusion(items_of(flat), 1 << 20)),
        recorder({}, clock, clock.monotonic()),
        optimizer(Sgd{.lr = 0.1, .momentum = 0.9}, nullptr, flat),
        strategy(flat, optimizer, *communicator, recorder, scale),
        exchange(flat, *communicator, *communicator, recorder) {
    strategy.set_plan(plan);
    exchange.use(strategy, plan);
    hooks.emplace(flat, exchange);
  }
  void step(const std::function<at::Tensor(int)>& loss, int batches = 1) {
    for (int batch = 0; batch < batches; ++batch) {
      exchange.begin_batch(batch + 1 == batches);
      exchange.backward(loss(batch));
    }
    strategy.update({exchange.finish(), 1, 0});
    exchange.end_window();
  }
  std::unique_ptr<comm::Communicator> communicator;
  FlatParameters flat;
  comm::FusionPlan plan;
  SystemClock clock;
  profile::Recorder recorder;
  FlatOptimizer optimizer;
  const FixedScale scale{1};
  Replicated strategy;
  GradientExchange exchange;
  std::optional<GradientHooks> hooks;
};

TEST(GradientExchange, AddsGradientsOfTensorsInTheSameMemory) {
  for (const int batches : {1, 3}) {
    Tied one(true), two(false);
    Stepper expected(*one), got(*two);
    for (int step = 0; step < 5; ++step) {
      const auto x = [&](int batch) { return 0.3 * (1 + step) + batch; };
      expected.step([&](int batch) { return one->loss(x(batch)); }, batches);
      got.step([&](int batch) { return two->loss(x(batch)); }, batches);
    }
    EXPECT_TRUE(torch::allclose(two->first, one->first, 1e-9, 1e-12));
    EXPECT_TRUE(torch::equal(two->second, two->first));
    EXPECT_TRUE(torch::allclose(two->other, one->other, 1e-9, 1e-12));
  }
}

// Whatever changes a gradient between backward and the update is found, and who only looks at it is left in peace.
TEST(GradientExchange, RefusesChangesOfGradientsAfterBackward) {
  using Edit = std::function<void(torch::nn::Linear&)>;
  const std::map<std::string, Edit> edits{
      {"clip_grad_norm_", [](auto& m) { torch::nn::utils::clip_grad_norm_(m->parameters(), 0.1); }},
      {"mul_", [](auto& m) { m->weight.mutable_grad().mul_(2); }},
      {"data", [](auto& m) { m->bias.grad().data().clamp_(-1, 1); }},
      {"zero_", [](auto& m) { m->zero_grad(/*set_to_none=*/false); }},
      {"reset", [](auto& m) { m->zero_grad(); }},
      {"replaced", [](auto& m) { m->weight.mutable_grad() = m->weight.grad() * 2; }},
      {"copy_", [](auto& m) {
         m->weight.grad().copy_(torch::zeros({3, 2}));
       }}};
  for (const auto& [name, edit] : edits) {
    for (const int batches : {1, 2}) {
      torch::nn::Linear model(2, 3);
      Stepper stepper(*model);
      int batch = 0;
      const auto x = torch::randn({4, 2});
      const auto one_batch = [&] {
        stepper.exchange.begin_batch(++batch % batches == 0);
        stepper.exchange.backward(model->forward(x).pow(2).sum());
      };
      for (int i = 0; i < batches; ++i) one_batch();
      EXPECT_GT(model->weight.grad().norm().item<double>(), 0);
      stepper.strategy.update({stepper.exchange.finish(), 1, 0});
      stepper.exchange.end_window();
      for (int i = 0; i < batches; ++i) one_batch();
      edit(model);
      try {
        stepper.exchange.finish();
        ADD_FAILURE() << name << " was not found, with " << batches << " batches";
      } catch (const Error& error) {
        const std::string text = error.what() + error.remedy();
        EXPECT_TRUE(text.find("'weight'") != text.npos || text.find("'bias'") != text.npos) << text;
        EXPECT_NE(text.find("context.clip_gradient_norm()"), std::string::npos) << text;
      }
    }
  }
}

TEST(GradientExchange, TakesSparseGradients) {
  for (const int batches : {1, 3}) {
    std::vector<at::Tensor> results;
    for (const bool sparse : {false, true}) {
      torch::manual_seed(8);
      torch::nn::Embedding model(torch::nn::EmbeddingOptions(6, 3).sparse(sparse));
      Stepper stepper(*model);
      for (int step = 0; step < 4; ++step) {
        stepper.step(
            [&](int batch) {
              return model->forward(torch::tensor({step, 1, 1, batch})).pow(2).sum();
            },
            batches);
      }
      results.push_back(model->weight.detach().clone());
    }
    EXPECT_TRUE(torch::allclose(results[0], results[1], 1e-5, 1e-6));  // added up in another order
  }
}

std::string said_by(const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ParameterWatch, NamesWhatTrainingWouldLeaveOut) {
  const auto communicator = alone();
  const auto expect = [&](const std::string& name, const std::function<void(torch::nn::Sequential&)>& change) {
    torch::nn::Sequential model(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
    model[1]->as<torch::nn::Linear>()->bias.set_requires_grad(false);
    FlatParameters flat(*model, *communicator);
    const ParameterWatch watch(*model, flat);
    const auto both = [&] {
      watch.check();
      watch.check_members();
    };
    EXPECT_EQ(said_by(both), "") << name;
    change(model);
    EXPECT_NE(said_by(both).find("'" + name + "'"), std::string::npos) << said_by(both);
  };
  expect("1.weight", [](auto& m) { m->to(torch::kFloat64); });
  expect("0.weight", [](auto& m) {
    auto weight = m[0]->template as<torch::nn::Linear>()->weight;
    weight.set_data(weight.detach().clone());
  });
  expect("1.bias", [](auto& m) { m[1]->template as<torch::nn::Linear>()->bias.set_requires_grad(true); });
  expect("2.weight", [](auto& m) { m->push_back(torch::nn::Linear(2, 2)); });
}

TEST(ParameterWatch, KnowsWhoWroteParameters) {
  const auto communicator = alone();
  torch::nn::Linear model(3, 2);
  FlatParameters flat(*model, *communicator);  // bias, then weight
  ParameterWatch watch(*model, flat);
  using Flags = std::vector<std::uint8_t>;
  for (const bool closer : {false, true}) {
    watch.note(closer);
    EXPECT_FALSE(watch.any_written());
    flat.groups()[0].values.add_(1);  // as the optimizer does
    watch.note(closer);
    EXPECT_EQ(watch.written(), (Flags{0, 0}));
    {
      const at::NoGradGuard no_grad;
      model->weight.clamp_(-0.1, 0.1);
    }
    EXPECT_TRUE(watch.any_written());
    EXPECT_EQ(watch.written(), (Flags{0, 1}));
    watch.note(closer);
    model->bias.data().add_(1);
    EXPECT_EQ(watch.written(), (Flags{closer, 0}));
    model->weight.detach().mul_(2);
    EXPECT_EQ(watch.written(), (Flags{closer, 1}));
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
    const int last = std::max(0, step - 1);
    EXPECT_DOUBLE_EQ(flat_optimizer.last_learning_rate(), base_rate * std::pow(schedule_gamma, last / 10));
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
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1), 0);
  EXPECT_TRUE(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1)));
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
      const FixedScale scale(1.0 / (2 * ranks));
      Replicated strategy(flat, optimizer, communicator, recorder, scale);
      strategy.set_plan(plan);
      GradientExchange exchange(flat, communicator, communicator, recorder);
      exchange.use(strategy, plan);
      const GradientHooks hooks(flat, exchange);
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
  const FixedScale scale(1);
  Replicated strategy(flat, optimizer, *communicator, recorder, scale);
  GradientExchange exchange(flat, *communicator, *communicator, recorder);
  exchange.use(strategy, plan);
  exchange.begin_batch(false);
  flat.parameters()[0].tensor.mutable_grad() = torch::ones({});
  exchange.gradient_ready(0);
  EXPECT_THROW(exchange.gradient_ready(0), Error);
}

}  // namespace
}  // namespace dtrain::train
