// float16 on a GPU: the loss scaler against its rules, and steps of training against the same operations by hand.
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include "dtrain/base/error.h"
#include "gpu_run.h"
#include "model/model_tensors.h"
#include "model/precision.h"
#include "small_run.h"
#include "step/training_step.h"

namespace dtrain::train {
namespace {

using test::gpus;
using testing::HasSubstr;

using Fp16OnGpus = test::OnGpus;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor on_gpu(std::vector<float> values) {
  return torch::tensor(values).to(test::kGpu);
}

TEST_F(Fp16OnGpus, TheScaleFollowsTheGradients) {
  LossScaler scaler({.initial_scale = 1024, .growth_interval = 3}, test::kGpu);
  double scale = 1024;
  int since = 0, skipped = 0;
  const float nan = std::nanf("");
  const std::vector<float> bad{0, 0, 0, 0, kInfinity, 0, nan, -kInfinity, 0, 0, 0, 0, 0, 0, nan, 0, 0, 0, 0, 0};
  for (const float value : bad) {
    const std::vector<at::Tensor> gradients{on_gpu({1, 2, 3}), on_gpu({-6, value})};
    const at::Tensor three = on_gpu({3});
    gpus.take_counts();
    scaler.begin_update();
    scaler.unscale(gradients, scaler.inverse(0.5));
    const at::Tensor loss = scaler.scaled(three);
    scaler.end_update();
    const auto counts = gpus.take_counts();
    EXPECT_EQ(counts.host_syncs + counts.scalar_reads + counts.copies_to_host, 0);
    EXPECT_EQ(loss.item<double>(), 3 * scale);
    EXPECT_TRUE(at::equal(gradients[0].cpu(), torch::tensor({1.0f, 2.0f, 3.0f}) * static_cast<float>(0.5 / scale)));
    const bool found = !std::isfinite(value);
    EXPECT_EQ(scaler.found_inf().item<float>(), found ? 1 : 0);
    // GradScaler's rules.
    if (found) {
      scale /= 2;
      since = 0;
      ++skipped;
    } else if (++since == 3) {
      scale *= 2;
      since = 0;
    }
    EXPECT_EQ(scaler.values()[0].item<double>(), scale);
    EXPECT_EQ(scaler.values()[2].item<double>(), skipped);
  }
  EXPECT_EQ(skipped, 4);
  EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
}

TEST_F(Fp16OnGpus, GradientsThatWereUnscaledBeforeAreLookedAtAlone) {
  LossScaler scaler({.initial_scale = 8, .growth_interval = 2}, test::kGpu);
  const std::vector<at::Tensor> fine{on_gpu({1, 2})}, infinite{on_gpu({kInfinity})};
  scaler.begin_update();
  scaler.look_at(fine);
  EXPECT_EQ(scaler.found_inf().item<float>(), 0);
  EXPECT_TRUE(at::equal(fine[0].cpu(), torch::tensor({1.0f, 2.0f})));
  scaler.look_at(infinite);
  scaler.look_at(fine);
  EXPECT_EQ(scaler.found_inf().item<float>(), 1);
  scaler.begin_update();
  EXPECT_EQ(scaler.found_inf().item<float>(), 0);
}

TEST_F(Fp16OnGpus, SettingsThatMakeNoSenseAreRefused) {
  for (const LossScaling& wrong : {LossScaling{.initial_scale = 0}, LossScaling{.initial_scale = -1},
                                   LossScaling{.initial_scale = 1e300}, LossScaling{.growth_interval = 0}}) {
    EXPECT_THROW(LossScaler(wrong, test::kGpu), ConfigError);
  }
}

// What it says is float32 is that under the autocast of CPUs and of GPUs. Sizes fill the vectors of libtorch's kernels,
// which round the elements of an incomplete one otherwise.
struct NarrowNetImpl : torch::nn::Module {
  NarrowNetImpl() {
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::LayerNorm(std::vector<std::int64_t>{16}));
    last = register_module("last", torch::nn::Linear(16, 16));
    at::Generator random = at::detail::createCPUGenerator(7);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.uniform_(-0.4, 0.4, random);
  }
  // In batches 3, 8 and 9 the loss is finite, and gradients are not.
  at::Tensor loss(std::int64_t batch, at::Device device) {
    at::Generator random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(batch));
    const double weight = batch == 3 || batch == 8 || batch == 9 ? 3000 : 1;
    const at::Tensor x = at::randn({5, 6}, random).to(device);
    const at::Tensor y = at::randint(16, {5}, random, at::kLong).to(device);
    const at::Tensor scores = last(norm(first(x).relu().to(at::kFloat)));
    return torch::nn::functional::cross_entropy(scores.to(at::kFloat), y) * weight;
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(NarrowNet);

constexpr int kBatches = 24;
const LossScaling kSettings{.initial_scale = 16384, .growth_interval = 5};

struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<std::pair<std::int64_t, double>> scales;  // of the batches whose update changed it
  std::int64_t skipped = 0;
};

// The same steps with libtorch alone, on the CPU.
Trained by_hand(const Optimizer& optimizer, int batches_a_step, double max_norm) {
  NarrowNet net;
  std::vector<at::Tensor> parameters = net->parameters(), first, second;
  for (const at::Tensor& parameter : parameters) {
    first.push_back(at::zeros_like(parameter));
    second.push_back(at::zeros_like(parameter));
  }
  double scale = kSettings.initial_scale;
  int since = 0, updates = 0;
  Trained result;
  for (int batch = 1; batch <= kBatches; ++batch) {
    at::Tensor loss;
    {
      const Autocast autocast(at::kHalf, at::kCPU);
      loss = net->loss(batch, at::kCPU);
    }
    (loss * scale).backward();
    if (batch % batches_a_step != 0) continue;
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    bool found = false;
    at::Tensor squares = at::zeros({}, at::kDouble);
    for (at::Tensor& parameter : parameters) {
      found |= !parameter.grad().isfinite().all().item<bool>();
      gradients.push_back(parameter.grad() * static_cast<float>(1 / scale / batches_a_step));
      parameter.mutable_grad() = at::Tensor();
    }
    if (max_norm > 0) {
      for (const at::Tensor& gradient : gradients) squares += gradient.to(at::kDouble).square().sum();
      const double factor = std::min(1.0, max_norm / (std::sqrt(squares.item<double>()) + 1e-6));
      for (at::Tensor& gradient : gradients) gradient.mul_(factor);
    }
    if (found) {
      ++result.skipped;
    } else if (const auto* const sgd = std::get_if<Sgd>(&optimizer)) {
      at::_fused_sgd_(parameters, gradients, first, 0, sgd->momentum, sgd->lr, 0, false, false, updates++ == 0);
    } else {
      const auto& adamw = std::get<AdamW>(optimizer);
      const std::vector<at::Tensor> numbers(parameters.size(), at::full({}, static_cast<float>(++updates)));
      at::_fused_adamw_(parameters, gradients, first, second, {}, numbers, adamw.lr, adamw.beta1, adamw.beta2,
                        adamw.weight_decay, adamw.eps, false, false);
    }
    const double before = scale;
    if (found) {
      scale /= 2;
      since = 0;
    } else if (++since == kSettings.growth_interval) {
      scale *= 2;
      since = 0;
    }
    if (scale != before) result.scales.emplace_back(batch, scale);
  }
  for (const at::Tensor& parameter : parameters) result.weights.push_back(parameter.detach().clone());
  return result;
}

struct Services {
  explicit Services(GpuRun& run)
      : services{run.control.world(),
                 run.control,
                 *run.host,
                 *run.nccl,
                 run.recorder,
                 run.clock,
                 make_null_logger(),
                 [this](const std::string& key, const Json& value) { plan[key] = value; },
                 [this](const std::string& event, const Json& fields) { events.emplace_back(event, fields); }} {}
  std::map<std::string, Json> plan;
  std::vector<std::pair<std::string, Json>> events;
  RunServices services;
};

StepOptions fp16_options(int batches_a_step, double max_norm) {
  StepOptions options;
  options.precision = config::Precision::kFloat16;
  options.loss_scaling = kSettings;
  options.aggregation_frequency = batches_a_step;
  options.max_gradient_norm = max_norm;
  return options;
}

Trained by_training(const Optimizer& optimizer, int batches_a_step, double max_norm) {
  Trained result;
  run_on_gpu([&](GpuRun& run) {
    gpus.delay_queries(2);
    Services services(run);
    NarrowNet net;
    move_model(*net, run.device);
    TrialContext::Wrapped wrapped;
    wrapped.model = net.ptr();
    wrapped.optimizer = optimizer;
    TrainingStep step(wrapped, services.services, fp16_options(batches_a_step, max_norm));
    for (int batch = 1; batch <= kBatches; ++batch) {
      step.announce(true, {});
      step.begin_batch();
      const Autocast autocast(at::kHalf, run.device);
      const at::Tensor loss = net->loss(batch, run.device);
      gpus.take_counts();
      const Autocast::Pause in_full(autocast);
      step.backward(loss);
      step.end_batch();
      if (batch > batches_a_step) {  // the first step looks for what the model writes
        const auto counts = gpus.take_counts();
        EXPECT_EQ(counts.scalar_reads, 0) << batch;
        EXPECT_EQ(counts.pageable_copies, 0) << batch;
      }
    }
    for (const auto& parameter : step.parameters().parameters()) {
      const bool narrow = !parameter.name.starts_with("norm");
      EXPECT_EQ(parameter.tensor.scalar_type(), narrow ? at::kHalf : at::kFloat) << parameter.name;
    }
    step.report();
    result.skipped = services.plan.at("loss_scaling").at("skipped_updates").get<std::int64_t>();
    for (const auto& [event, fields] : services.events) {
      EXPECT_EQ(event, "loss_scale");
      result.scales.emplace_back(fields.at("batch").get<std::int64_t>(), fields.at("scale").get<double>());
    }
    EXPECT_EQ(services.plan.at("loss_scaling").at("scale"), result.scales.back().second);
    EXPECT_FALSE(services.plan.contains("non_finite")) << services.plan["non_finite"];
    const auto values = step.values_in_model();
    for (const at::Tensor& parameter : net->parameters()) result.weights.push_back(parameter.detach().cpu());
  });
  return result;
}

TEST_F(Fp16OnGpus, TrainsAsTheSameOperationsByHandDo) {
  for (const Optimizer& optimizer : {Optimizer(Sgd{.lr = 0.05, .momentum = 0.9}), Optimizer(AdamW{.lr = 0.01})}) {
    for (const auto& [batches, max_norm] : std::map<int, double>{{1, 0}, {2, 0}, {3, 0.3}}) {
      SCOPED_TRACE(testing::Message() << "optimizer " << optimizer.index() << ", " << batches << " batches a step");
      const Trained expected = by_hand(optimizer, batches, max_norm);
      const Trained got = by_training(optimizer, batches, max_norm);
      EXPECT_GE(expected.skipped, 2);
      EXPECT_GE(expected.scales.size(), static_cast<std::size_t>(expected.skipped) + (batches == 1 ? 2 : 0));
      EXPECT_EQ(got.skipped, expected.skipped);
      EXPECT_EQ(got.scales, expected.scales);
      ASSERT_EQ(got.weights.size(), expected.weights.size());
      for (std::size_t i = 0; i < got.weights.size(); ++i) {
        EXPECT_TRUE(max_norm > 0 ? at::allclose(got.weights[i], expected.weights[i], 1e-5, 1e-7)
                                 : at::equal(got.weights[i], expected.weights[i]))
            << i << " differs by " << (got.weights[i] - expected.weights[i]).abs().max().item<double>();
      }
    }
  }
}

TEST_F(Fp16OnGpus, WhatFloat16CannotHaveIsRefused) {
  const auto refusal = [](const Optimizer& optimizer, bool on_gpu) {
    std::string text;
    run_on_gpu([&](GpuRun& run) {
      Services services(run);
      NarrowNet net;
      if (on_gpu) move_model(*net, run.device);
      TrialContext::Wrapped wrapped;
      wrapped.model = net.ptr();
      wrapped.optimizer = optimizer;
      const RunServices on_host{services.services.world,
                                services.services.control,
                                *run.host,
                                *run.host,
                                run.recorder,
                                run.clock,
                                make_null_logger(),
                                services.services.update_plan,
                                services.services.write_event};
      try {
        TrainingStep(wrapped, on_gpu ? services.services : on_host, fp16_options(1, 0));
      } catch (const ConfigError& error) {
        text = error.what();
      }
    });
    return text;
  };
  EXPECT_THAT(refusal(Sgd{.momentum = 0.9, .dampening = 0.1}, true), HasSubstr("sgd with dampening"));
  EXPECT_THAT(refusal(Sgd{.momentum = 0.9}, false), HasSubstr("needs GPUs"));
  EXPECT_EQ(refusal(Sgd{.momentum = 0.9}, true), "");
}

TEST_F(Fp16OnGpus, AScaleThatFallsAndFallsIsWarnedOfOnce) {
  run_on_gpu([&](GpuRun& run) {
    Services services(run);
    std::ostringstream log;
    services.services.log = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_st>(log));
    LossScaler scaler({.initial_scale = 4, .growth_interval = 100}, run.device);
    StepsInFlight in_flight(run.device, *run.nccl, run.recorder);
    LossScalingReport report(services.services, in_flight, scaler, /*each_rank=*/false);
    for (int batch = 1; batch <= 6; ++batch) {
      scaler.begin_update();
      scaler.look_at({on_gpu({kInfinity})});
      scaler.end_update();
      report.after_update(batch);
      in_flight.end_batch();
    }
    in_flight.finish_all();
    report.write();
    EXPECT_EQ(services.plan.at("loss_scaling").at("skipped_updates"), 6);
    EXPECT_EQ(services.plan.at("loss_scaling").at("scale"), 4.0 / 64);
    EXPECT_EQ(services.events.size(), 6u);
    const auto count = [text = log.str()](const std::string& words) {
      int found = 0;
      for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
      return found;
    };
    EXPECT_EQ(count("not finite in batch 1: its update is skipped"), 1) << log.str();
    EXPECT_EQ(count("is skipped"), 1) << log.str();
    EXPECT_EQ(count("has fallen below 1 in batch 3"), 1) << log.str();
    EXPECT_EQ(count("below 1"), 1) << log.str();
  });
}

}  // namespace
}  // namespace dtrain::train
