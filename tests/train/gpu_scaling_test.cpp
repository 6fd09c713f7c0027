// The scaling of gradients where each of two ranks updates a half: what one finds in its half concerns both.
#include <cmath>
#include <limits>

#include "device/training_device.h"
#include "dtrain/profile/recorder.h"
#include "gpu_ranks.h"
#include "model/flat_parameters.h"
#include "model/model_tensors.h"
#include "precision/loss_scaler.h"
#include "strategies/gradient_scaling.h"

namespace dtrain::train {
namespace {

using test::expect_gpu_ranks;
using test::GpuRank;

const c10::Device kRanksGpu(at::kCUDA, 0);
constexpr double kScale = 8;

// A rank with all gradients, of which the first half is rank 0's.
struct HalfOfGradients {
  explicit HalfOfGradients(const GpuRank& rank)
      : recorder({}, clock, clock.monotonic()),
        nccl(rank.connect(test::TestWorld(2),
                          {.current_stream = [] { return native_handle(current_stream(kRanksGpu)); }})),
        model(16, 16),
        scaler({.initial_scale = kScale, .growth_interval = 5}, kRanksGpu) {
    at::set_num_threads(1);
    move_model(*model, kRanksGpu);
    flat = std::make_unique<FlatParameters>(*model, *nccl);
    scaling = make_gradient_scaling(*flat, *nccl, recorder);
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

}  // namespace
}  // namespace dtrain::train
