// Updates with dtrain's own kernel against libtorch's fused ones, to the bit, and what happens where they differ.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/torch.h>

#include "dtrain/config/optimizers.h"
#include "dtrain/train/optimizer.h"
#include "harness/run_ranks.h"
#include "model/flat_parameters.h"
#include "model/fused_update.h"
#include "model/model_report.h"
#include "update_targets.h"

namespace dtrain::train {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// For its lifetime libtorch has so many threads.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  const int before_;
};

// Values and states that an update changes.
struct Trained {
  at::Tensor values;
  std::vector<at::Tensor> states;
  Trained clone() const {
    Trained result{values.clone(), {}};
    for (const at::Tensor& state : states) result.states.push_back(state.clone());
    return result;
  }
  Trained part(std::int64_t begin, std::int64_t size) const {
    Trained result{values.narrow(0, begin, size), {}};
    for (const at::Tensor& state : states) result.states.push_back(state.narrow(0, begin, size));
    return result;
  }
};

// Normal numbers; `wild`: of all sizes, with infinities, NaN and numbers too small to be normal among them.
at::Tensor numbers(std::int64_t count, bool wild) {
  at::Tensor result = torch::randn({count});
  if (!wild) return result;
  result *= (torch::randn({count}) * 4).exp();
  using Limits = std::numeric_limits<float>;
  const at::Tensor which = torch::randint(0, 60, {count});
  std::int64_t kind = 0;
  for (const float special : {0.0f, -0.0f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), 1e-40f}) {
    result.masked_fill_(which == kind++, special);
  }
  return result;
}

Trained begin_with(const OptimizerUpdate& update, std::int64_t count, bool wild = false) {
  Trained result{numbers(count, wild), {}};
  for (std::size_t s = 0; s < update.state_names().size(); ++s) result.states.push_back(torch::zeros({count}));
  return result;
}

// NaN equals NaN, 0 does not equal -0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor same = a.view(at::kInt) == b.view(at::kInt);
  return (same | (a.isnan() & b.isnan())).all().item<bool>();
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_TRUE(same_bits(a.values, b.values)) << "values";
  for (std::size_t s = 0; s < a.states.size(); ++s) EXPECT_TRUE(same_bits(a.states[s], b.states[s])) << "state " << s;
}

// libtorch's own, as torch.optim calls them.
void by_libtorch(const Sgd& settings, const Trained& trained, const at::Tensor& gradients, const UpdateStep& step) {
  at::_fused_sgd_(trained.values, gradients, trained.states, settings.weight_decay, settings.momentum, step.rate,
                  settings.dampening, settings.nesterov, false, step.updates == 0, optional(step.device.divisor));
}
void by_libtorch(const Adam& settings, const Trained& trained, const at::Tensor& gradients, const UpdateStep& step) {
  const at::Tensor number = torch::tensor(static_cast<float>(step.updates + 1));
  at::_fused_adam_(trained.values, gradients, trained.states[0], trained.states[1], {}, number, step.rate,
                   settings.beta1, settings.beta2, settings.weight_decay, settings.eps, false, false,
                   optional(step.device.divisor));
}
void by_libtorch(const AdamW& settings, const Trained& trained, const at::Tensor& gradients, const UpdateStep& step) {
  const at::Tensor number = torch::tensor(static_cast<float>(step.updates + 1));
  at::_fused_adamw_(trained.values, gradients, trained.states[0], trained.states[1], {}, number, step.rate,
                    settings.beta1, settings.beta2, settings.weight_decay, settings.eps, false, false,
                    optional(step.device.divisor));
}
void by_libtorch(const Optimizer& optimizer, const Trained& trained, const at::Tensor& gradients,
                 const UpdateStep& step) {
  std::visit([&](const auto& settings) { by_libtorch(settings, trained, gradients, step); }, optimizer);
}

std::unique_ptr<OptimizerUpdate> make(const Optimizer& optimizer) {
  return std::visit([](const auto& settings) { return settings.make_update(); }, optimizer);
}

const std::vector<Optimizer> kOptimizers{
    Sgd{},
    Sgd{.weight_decay = 0.1},
    Sgd{.momentum = 0.9},
    Sgd{.momentum = 0.9, .dampening = 0.25},
    Sgd{.momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1},
    Sgd{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    Adam{},
    Adam{.beta1 = 0.3, .weight_decay = 0.1},
    Adam{.beta1 = 0, .beta2 = 0.5, .eps = 1e-3},
    AdamW{},
    AdamW{.beta1 = 0.5, .beta2 = 0.95, .weight_decay = 0},
};

// Whether libtorch's kernels here are those whose arithmetic the own ones have on such a target.
std::optional<bool> libtorch_has_fma() {
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX2" || capability == "AVX512") return true;
#if HWY_ARCH_X86
  if (capability == "DEFAULT") return false;
#endif
  return std::nullopt;
}

// libtorch has other arithmetic than the own kernel on an old CPU that it takes for a new one, and the other way round.
#define SKIP_UNLESS_KNOWN() \
  if (libtorch_has_fma() != true) GTEST_SKIP() << "libtorch's kernels are those for " << at::get_cpu_capability()

// Each of `sizes` elements, from each of some offsets, in four updates.
void compare_with_libtorch(const Optimizer& optimizer, const std::vector<std::int64_t>& sizes, bool wild) {
  const auto update = make(optimizer);
  ASSERT_EQ(update->kernel(at::kCPU, at::kFloat).whose, "dtrain") << update->kernel(at::kCPU, at::kFloat).why;
  for (const std::int64_t size : sizes) {
    for (const std::int64_t offset : {0, 1, 13}) {
      SCOPED_TRACE(testing::Message() << size << " elements from " << offset << (wild ? ", wild" : ""));
      const Trained all = begin_with(*update, offset + size, wild);
      const Trained ours = all.part(offset, size), theirs = all.clone().part(offset, size);
      for (int i = 0; i < 4; ++i) {
        const UpdateStep step{.rate = 0.1 / (i + 1), .updates = i};
        const at::Tensor gradients = numbers(offset + size, wild).narrow(0, offset, size), before = gradients.clone();
        update->update(ours.values, gradients, ours.states, step);
        by_libtorch(optimizer, theirs, gradients, step);
        EXPECT_TRUE(same_bits(gradients, before)) << "gradients were written";
      }
      expect_same(ours, theirs);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(FusedUpdate, HasTheBitsOfLibtorchOnEveryTarget) {
  const Threads one(1);  // libtorch's tails are where its threads end
  const auto fma = libtorch_has_fma();
  if (!fma) GTEST_SKIP() << "libtorch's kernels for " << at::get_cpu_capability() << " are not known";
  torch::manual_seed(5);
  int targets = 0;
  kernels::on_every_target([&](bool target_fma) {
    if (target_fma != *fma) return;  // the reference of update_kernels_test.cpp is for those
    ++targets;
    for (std::size_t i = 0; i < kOptimizers.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "optimizer " << i);
      compare_with_libtorch(kOptimizers[i], {1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 1000}, false);
      compare_with_libtorch(kOptimizers[i], {7, 16, 1000}, true);
      if (testing::Test::HasFailure()) return;
    }
  });
  EXPECT_GE(targets, 1);
}

TEST(FusedUpdate, HasTheBitsOfLibtorchInManyElements) {
  const Threads one(1);
  SKIP_UNLESS_KNOWN();
  torch::manual_seed(6);
  for (std::size_t i = 0; i < kOptimizers.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "optimizer " << i);
    compare_with_libtorch(kOptimizers[i], {65'537}, i % 2 == 0);
  }
}

TEST(FusedUpdate, DependsNeitherOnPiecesNorOnThreads) {
  SKIP_UNLESS_KNOWN();
  torch::manual_seed(7);
  const std::int64_t count = 200'016;
  for (const Optimizer& optimizer : kOptimizers) {
    const auto update = make(optimizer);
    const Trained begin = begin_with(*update, count);
    const std::vector<at::Tensor> gradients{torch::randn({count}), torch::randn({count}), torch::randn({count})};
    const auto train = [&](int threads, std::int64_t piece) {
      const Threads now(threads);
      const Trained trained = begin.clone();
      for (int i = 0; i < 3; ++i) {
        for (std::int64_t at = 0; at < count; at += piece) {
          const std::int64_t size = std::min(piece, count - at);
          const Trained part = trained.part(at, size);
          update->update(part.values, gradients[i].narrow(0, at, size), part.states, {0.01, i, {}, {}});
        }
      }
      return trained;
    };
    const Trained whole = train(1, count);
    EXPECT_FALSE(same_bits(whole.values, begin.values));
    for (const int threads : {2, 3}) {
      SCOPED_TRACE(testing::Message() << threads << " threads");
      expect_same(train(threads, count), whole);
    }
    expect_same(train(1, 16 * 37), whole);
    expect_same(train(2, 8 * 9'001), whole);
  }
}

// A size at which the shadow goes past the caches is among them.
TEST(FusedUpdate, ReadsBfloat16GradientsAndWritesAShadow) {
  SKIP_UNLESS_KNOWN();
  torch::manual_seed(8);
  for (const std::int64_t count : {5, 1000, 200'003, 2'200'013}) {
    for (const Optimizer& optimizer : {Optimizer(Sgd{.momentum = 0.9}), Optimizer(AdamW{})}) {
      for (const int threads : {1, 3}) {
        const Threads now(threads);
        SCOPED_TRACE(testing::Message() << count << " elements, " << threads << " threads");
        const auto update = make(optimizer);
        const bool wild = count < 100'000;
        const Trained narrow = begin_with(*update, count, wild), wide = narrow.clone();
        const at::Tensor shadow = torch::zeros({count}, at::kBFloat16);
        for (int i = 0; i < 2; ++i) {
          const at::Tensor gradients = numbers(count, wild).to(at::kBFloat16);
          update->update(narrow.values, gradients, narrow.states, {0.01, i, {}, shadow});
          update->update(wide.values, gradients.to(at::kFloat), wide.states, {0.01, i, {}, {}});
        }
        expect_same(narrow, wide);
        EXPECT_TRUE(at::equal(shadow.view(at::kShort), narrow.values.to(at::kBFloat16).view(at::kShort)));
      }
    }
  }
}

TEST(FusedUpdate, LibtorchDividesGradientsAndUpdatesFloat64) {
  torch::manual_seed(9);
  for (const Optimizer& optimizer : kOptimizers) {
    const auto update = make(optimizer);
    Trained ours = begin_with(*update, 1003), theirs = ours.clone();
    const at::Tensor gradients = torch::randn({1003}), their_gradients = gradients.clone();
    const UpdateStep divided{.rate = 0.1,
                             .device = {.divisor = torch::tensor(3.0f), .found_inf = {}},
                             .shadow = torch::zeros({1003}, at::kBFloat16)};
    update->update(ours.values, gradients, ours.states, divided);
    by_libtorch(optimizer, theirs, their_gradients, divided);
    expect_same(ours, theirs);
    EXPECT_TRUE(at::equal(gradients, their_gradients)) << "not the quotient";
    EXPECT_TRUE(at::equal(divided.shadow, theirs.values.to(at::kBFloat16)));

    for (Trained* trained : {&ours, &theirs}) {
      trained->values = trained->values.to(at::kDouble);
      for (at::Tensor& state : trained->states) state = state.to(at::kDouble);
    }
    const at::Tensor wide = torch::randn({1003}, at::kDouble);
    update->update(ours.values, wide, ours.states, {0.1, 1, {}, {}});
    by_libtorch(optimizer, theirs, wide, {0.1, 1, {}, {}});
    EXPECT_TRUE(at::equal(ours.values, theirs.values));
    EXPECT_EQ(update->kernel(at::kCPU, at::kDouble).whose, "libtorch");
    EXPECT_EQ(update->kernel(at::kCPU, at::kDouble).why, "");
    EXPECT_EQ(update->kernel(at::kCUDA, at::kFloat).whose, "libtorch");
  }
}

// SGD with momentum whose own kernel may be made wrong in one place.
class PlantedKernels final : public FusedKernels {
 public:
  using Plant = std::function<void(const kernels::Stretch&, float* momentum, std::int64_t updates)>;
  explicit PlantedKernels(Plant plant) : plant_(std::move(plant)) {}
  double learning_rate() const override { return 0.1; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void libtorch(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                const UpdateStep& step) const override {
    by_libtorch(settings_, {values, states.vec()}, gradients, step);
  }
  void own(const kernels::Stretch& stretch, std::span<float* const> states, const UpdateStep& step) const override {
    kernels::update_sgd({.rate = step.rate, .momentum = settings_.momentum, .first = step.updates == 0}, stretch,
                        states[0]);
    plant_(stretch, states[0], step.updates);
  }
  bool on_device(const UpdateTensors&) const override { return false; }

 private:
  const Sgd settings_{.lr = 0.1, .momentum = 0.9};
  const Plant plant_;
};

// One unit in the last place.
void nudge(float& value) {
  value = std::nextafter(value, 2 * value);
}

struct Planted {
  const char* name;
  PlantedKernels::Plant plant;
  const char* found;
};

class PlantedDifference : public testing::TestWithParam<Planted> {};

TEST_P(PlantedDifference, IsFoundAndLibtorchUsed) {
  SKIP_UNLESS_KNOWN();
  torch::manual_seed(10);
  for (const int threads : {1, 3}) {
    const Threads now(threads);
    const FusedUpdate update(std::make_unique<PlantedKernels>(GetParam().plant));
    const UpdateKernel kernel = update.kernel(at::kCPU, at::kFloat);
    EXPECT_EQ(kernel.whose, "libtorch");
    EXPECT_THAT(kernel.why, HasSubstr(GetParam().found));
    EXPECT_THAT(kernel.why, StartsWith("dtrain's kernel gives other bits than libtorch's in element "));

    // Of a size that is worked off in several blocks.
    const std::int64_t count = 150'007;
    const Trained ours = begin_with(update, count), theirs = ours.clone();
    const Threads one(1);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor gradients = torch::randn({count}).to(at::kBFloat16);
      const at::Tensor shadow = torch::zeros({count}, at::kBFloat16);
      update.update(ours.values, gradients, ours.states, {0.01, i, {}, shadow});
      by_libtorch(Sgd{.momentum = 0.9}, theirs, gradients.to(at::kFloat), {0.01, i, {}, {}});
      expect_same(ours, theirs);
      EXPECT_TRUE(at::equal(shadow, theirs.values.to(at::kBFloat16)));
    }
    const at::Tensor gradients = torch::randn({count});
    update.update(ours.values, gradients, ours.states, {0.01, 3, {}, {}});
    by_libtorch(Sgd{.momentum = 0.9}, theirs, gradients, {0.01, 3, {}, {}});
    expect_same(ours, theirs);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Places, PlantedDifference,
    testing::Values(Planted{"AValue", [](const auto& s, float*, std::int64_t) { nudge(s.values[s.count - 1]); },
                            "of the values after update 1"},
                    Planted{"AStateInTheThirdUpdate",
                            [](const auto& s, float* momentum, std::int64_t updates) {
                              if (updates == 2) nudge(momentum[s.count - 1]);
                            },
                            "of momentum after update 3"},
                    Planted{"ATail",
                            [](const auto& s, float* momentum, std::int64_t) {
                              if (s.count % 8 != 0) nudge(momentum[s.count - 1]);
                            },
                            "of momentum after update 1"},
                    Planted{"Bfloat16Gradients",
                            [](const auto& s, float* momentum, std::int64_t) {
                              if (s.narrow_gradients) nudge(momentum[s.count - 1]);
                            },
                            "of momentum after update 3"},
                    Planted{"AShadow", [](const auto& s, float*, std::int64_t) { s.shadow[s.count - 1] ^= 1; },
                            "of the copy in bfloat16 after update 1"},
                    Planted{"ANaNsShadow",
                            [](const auto& s, float*, std::int64_t) {
                              for (std::size_t i = 0; i < s.count; ++i) {
                                if (std::isnan(s.values[i])) s.shadow[i] = 0x7FC1;
                              }
                            },
                            "of the copy in bfloat16 after update 1"}),
    [](const auto& of) { return std::string(of.param.name); });

TEST(FusedUpdate, UsesItsOwnKernelWhereNothingDiffers) {
  SKIP_UNLESS_KNOWN();
  for (const int threads : {1, 2, 3, 7}) {
    const Threads now(threads);
    const FusedUpdate update(std::make_unique<PlantedKernels>([](auto&&...) {}));
    EXPECT_EQ(update.kernel(at::kCPU, at::kFloat).whose, "dtrain") << update.kernel(at::kCPU, at::kFloat).why;
    for (const Optimizer& optimizer : kOptimizers) {
      EXPECT_EQ(make(optimizer)->kernel(at::kCPU, at::kFloat).why, "") << threads << " threads";
    }
  }
}

TEST(FusedUpdate, ThePlanSaysWhoseKernelUpdates) {
  test::run_communicator_ranks(test::TestWorld(1), "thread", [](comm::Communicator& communicator) {
    torch::nn::Linear single(3, 2), twice(3, 2);
    twice->to(at::kDouble);
    const FlatParameters flat(*single, communicator), wide(*twice, communicator);
    const auto own = AdamW{}.make_update()->kernel(at::kCPU, at::kFloat);
    const Json plan = describe_optimizer(AdamW{}, flat);
    EXPECT_EQ(plan.at("kind"), "adamw");
    EXPECT_EQ(plan.at("fused"), true);
    EXPECT_EQ(plan.at("kernel"), own.whose);
    EXPECT_EQ(plan.value("kernel_reason", ""), own.why);
    EXPECT_EQ(to_line(describe_optimizer(AdamW{}, wide)), R"({"kind":"adamw","fused":true,"kernel":"libtorch"})");
    EXPECT_TRUE(describe_optimizer(std::nullopt, flat).is_null());
  });
}

}  // namespace
}  // namespace dtrain::train
