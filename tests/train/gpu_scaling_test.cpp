// The scaling of gradients where each of two ranks updates a half: what one finds in its half concerns both.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/training_device.h"
#include "dtrain/profile/recorder.h"
#include "exchange/gradient_scaling.h"
#include "gpu_ranks.h"
#include "model/flat_parameters.h"
#include "model/model_tensors.h"
#include "model/precision.h"

namespace dtrain::train {
namespace {

using test::expect_gpu_ranks;
using test::GpuRank;

const c10::Device kRanksGpu(at::kCUDA, 0);
constexpr double kScale = 8;

// A rank with all gradients, of which the first half is rank 0's.
struct HalfOfGradients {
  // Parameters whose limit is not empty are clipped by themselves, in the order of registration: weight, bias.
  explicit HalfOfGradients(const GpuRank& rank, const std::vector<GradientLimits::Limit>& own = {})
      : recorder({}, clock, clock.monotonic()),
        nccl(rank.connect(test::TestWorld(2),
                          {.current_stream = [] { return native_handle(current_stream(kRanksGpu)); }})),
        model(16, 16),
        scaler({.initial_scale = kScale, .growth_interval = 5}, kRanksGpu) {
    at::set_num_threads(1);
    move_model(*model, kRanksGpu);
    flat = std::make_unique<FlatParameters>(*model, *nccl);
    GradientLimits limits{.own = own, .set_of = {}};
    for (const auto& parameter : flat->parameters()) {
      const std::size_t set = parameter.name == "weight" ? 1 : 2;
      limits.set_of.push_back(set <= own.size() ? set : 0);
    }
    scaling = make_gradient_scaling(*flat, *nccl, recorder, limits);
    const std::int64_t half = gradients().numel() / 2;
    halves.push_back({FlatRange{0, 0, half}});
    halves.push_back({FlatRange{0, half, gradients().numel()}});
    scaling->divide(halves, halves[static_cast<std::size_t>(rank.control.world().rank)]);
  }
  const at::Tensor& gradients() const { return flat->groups().front().gradients; }

  // Gradients are 1, and the last one, which is rank 1's, is `last`.
  GradientScaling::Scaled prepare(double last, double max_norm) {
    const at::NoGradGuard no_grad;
    gradients().fill_(1);
    gradients().narrow(0, gradients().numel() - 1, 1).fill_(last);
    return scaling->prepare({{}, 1, max_norm, &scaler});
  }
  double found_inf() const { return scaler.found_inf().item<double>(); }

  SystemClock clock;
  profile::Recorder recorder;
  const std::unique_ptr<comm::NcclCommunicator> nccl;
  torch::nn::Linear model;
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<GradientScaling> scaling;
  LossScaler scaler;
  std::vector<std::vector<FlatRange>> halves;
};

TEST(GpuScaling, WhatOneRankFindsStopsTheUpdateOfAll) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    HalfOfGradients half(rank);
    for (const double max_norm : {0.0, 0.5}) {
      for (const double last : {1.0, std::numeric_limits<double>::infinity(), 1.0, std::nan("")}) {
        const GradientScaling::Scaled scaled = half.prepare(last, max_norm);
        EXPECT_EQ(half.found_inf(), std::isfinite(last) ? 0 : 1) << last << " clipped at " << max_norm;
        EXPECT_EQ(scaled.norm.has_value(), max_norm > 0);
        if (scaled.norm && !std::isfinite(last)) {
          EXPECT_EQ(scaled.norm->item<double>(), 0);
        }
      }
    }
  });
}

TEST(GpuScaling, TheNormIsThatOfAllRanksGradients) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    HalfOfGradients half(rank);
    const double others = static_cast<double>(half.gradients().numel() - 1);  // which are 1
    const double expected = std::sqrt(others + 100 * 100) / kScale;
    const GradientScaling::Scaled scaled = half.prepare(100, 0.5);
    ASSERT_TRUE(scaled.norm.has_value());
    EXPECT_NEAR(scaled.norm->item<double>(), expected, 1e-5 * expected);
    EXPECT_NEAR(scaled.device.divisor.item<double>(), expected / 0.5, 1e-5 * expected / 0.5);
  });
}

TEST(GpuScaling, GroupsWithALimitAreClippedByThemselves) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    const at::NoGradGuard no_grad;
    HalfOfGradients half(rank, {{.max_norm = 2, .max_value = 0}});  // 256 weights, and 16 biases that have no own limit
    half.gradients().zero_();                                       // the padding, too
    for (const auto& parameter : half.flat->parameters()) {
      half.gradients().narrow(0, parameter.offset, parameter.tensor.numel()).fill_(1);
    }
    const GradientScaling::Scaled scaled = half.scaling->prepare({.used = {}, .correction = 3, .max_norm = 6});
    ASSERT_TRUE(scaled.norm.has_value());
    EXPECT_NEAR(scaled.norm->item<double>(), 3 * std::sqrt(272.0), 1e-4);
    EXPECT_FALSE(scaled.device.divisor.defined()) << "each set is divided by its own";
    for (const auto& parameter : half.flat->parameters()) {
      // This rank updates only its half of them, in which their gradients are alike.
      for (const FlatRange& range : half.halves[static_cast<std::size_t>(rank.control.world().rank)]) {
        const std::int64_t begin = std::max(range.begin, parameter.offset);
        const std::int64_t end = std::min(range.end, parameter.offset + parameter.tensor.numel());
        if (begin >= end) continue;
        const at::Tensor clipped = half.gradients().narrow(0, begin, end - begin);
        // Weights: a norm of 48 becomes 2. Biases: one of 12 becomes 6.
        const double expected = parameter.name == "weight" ? 2.0 / 16 : 6.0 / 4;
        EXPECT_NEAR(clipped.min().item<double>(), expected, 1e-4) << parameter.name;
        EXPECT_NEAR(clipped.max().item<double>(), expected, 1e-4) << parameter.name;
      }
    }
  });
}

// As clip_grad_norm_ for each group: an infinite norm makes finite gradients 0 and infinite ones NaN, NaN all of them.
TEST(GpuScaling, ANormThatIsNotFinite) {
  for (const bool groups : {false, true}) {
    expect_gpu_ranks(2, [groups](const GpuRank& rank) {
      const at::NoGradGuard no_grad;
      const double infinity = std::numeric_limits<double>::infinity();
      std::vector<GradientLimits::Limit> own;
      if (groups) own.push_back({.max_norm = 2, .max_value = 0});
      HalfOfGradients half(rank, own);
      for (const double bad : {infinity, -infinity, std::nan("")}) {
        half.gradients().fill_(1);
        const std::int64_t middle = half.gradients().numel() / 2;  // of the weights
        half.gradients().narrow(0, middle, 1).fill_(bad);
        const GradientScaling::Scaled scaled = half.scaling->prepare({.used = {}, .correction = 1, .max_norm = 1e-3});
        EXPECT_FALSE(std::isfinite(scaled.norm->item<double>()));
        const int number = rank.control.world().rank;
        const FlatRange& range = half.halves[static_cast<std::size_t>(number)].front();
        at::Tensor clipped = half.gradients().narrow(0, range.begin, range.size()).clone();
        if (scaled.device.divisor.defined()) clipped.div_(scaled.device.divisor);
        for (const auto& parameter : half.flat->parameters()) {
          const std::int64_t begin = std::max(range.begin, parameter.offset);
          const std::int64_t end = std::min(range.end, parameter.offset + parameter.tensor.numel());
          if (begin >= end) continue;
          const at::Tensor mine = clipped.narrow(0, begin - range.begin, end - begin);
          const std::int64_t nans = mine.isnan().sum().item<std::int64_t>();
          if (groups && parameter.name == "bias") {
            EXPECT_TRUE(mine.gt(0).all().item<bool>()) << "of a group whose norm is finite";
          } else if (std::isnan(bad)) {
            EXPECT_EQ(nans, mine.numel());
          } else {
            EXPECT_EQ(nans, begin <= middle && middle < end ? 1 : 0);
            EXPECT_EQ(mine.eq(0).sum().item<std::int64_t>(), mine.numel() - nans);
          }
        }
      }
    });
  }
}

TEST(GpuScaling, GroupsWithALimitOfValues) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    const at::NoGradGuard no_grad;
    HalfOfGradients half(rank, {{.max_norm = 0, .max_value = 0.25}, {}});
    half.gradients().fill_(1);
    const GradientScaling::Scaled scaled = half.scaling->prepare({.used = {}, .correction = 0.5, .max_norm = 0});
    EXPECT_FALSE(scaled.norm.has_value());
    EXPECT_FALSE(scaled.device.divisor.defined());
    for (const FlatRange& range : half.halves[static_cast<std::size_t>(rank.control.world().rank)]) {
      EXPECT_GE(half.gradients().narrow(0, range.begin, range.size()).min().item<double>(), 0.25);
      EXPECT_LE(half.gradients().narrow(0, range.begin, range.size()).max().item<double>(), 0.5);
    }
  });
}

}  // namespace
}  // namespace dtrain::train
