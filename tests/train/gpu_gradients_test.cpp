// Models, gradients and their scaling on a GPU, against the CPU.
#include <cmath>
#include <limits>

#include "device/device_profile.h"
#include "dtrain/base/error.h"
#include "exchange/gradient_exchange.h"
#include "exchange/gradient_place.h"
#include "exchange/gradient_scaling.h"
#include "exchange/replicated.h"
#include "exchange/sharded.h"
#include "gpu_run.h"
#include "model/flat_optimizer.h"
#include "model/gradient_norm.h"
#include "model/model_tensors.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

using test::gpus;
using testing::HasSubstr;

using GpuGradients = test::OnGpus;

TEST_F(GpuGradients, AModelMovesWithItsTiesLayoutsAndIdentities) {
  torch::nn::Module model;
  const auto one = model.register_parameter("one", torch::randn({4, 3}));
  auto other = model.register_parameter("other", torch::zeros({4, 3}));
  other.set_data(one.detach());
  const auto strided = model.register_parameter("strided", torch::randn({5, 7}).t());
  const auto frozen = model.register_parameter("frozen", torch::randn({2}), /*requires_grad=*/false);
  const auto buffer = model.register_buffer("buffer", torch::arange(6).view({2, 3}));
  const auto alias = model.register_buffer("alias", one.detach());
  const auto image =
      model.register_buffer("image", torch::randn({1, 2, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast));
  std::vector<at::Tensor> all{one, other, strided, frozen, buffer, alias, image}, before;
  for (const at::Tensor& tensor : all) before.push_back(tensor.detach().clone(at::MemoryFormat::Preserve));
  move_model(model, test::kGpu);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].device(), test::kGpu) << i;
    EXPECT_EQ(all[i].strides(), before[i].strides()) << i;
    EXPECT_TRUE(at::equal(all[i].detach().cpu(), before[i])) << i;
  }
  EXPECT_TRUE(one.requires_grad());
  EXPECT_FALSE(frozen.requires_grad());
  EXPECT_EQ(one.data_ptr(), other.data_ptr());
  EXPECT_EQ(one.data_ptr(), alias.data_ptr());
  const void* const place = one.data_ptr();
  move_model(model, test::kGpu);  // it is there already
  EXPECT_EQ(one.data_ptr(), place);
  move_model(model, at::kCPU);  // for ranks without a GPU: nothing
  EXPECT_EQ(one.data_ptr(), place);
  EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
}

TEST_F(GpuGradients, AModelOfWhichPartsShareMemoryIsRefused) {
  torch::nn::Module model;
  const auto all = torch::randn({10});
  model.register_parameter("left", all.narrow(0, 0, 6));
  const auto right = model.register_parameter("right", all.narrow(0, 4, 6));
  try {
    move_model(model, test::kGpu);
    ADD_FAILURE() << "it was moved";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'left' and 'right' of the model share a part of their memory"));
  }
  EXPECT_TRUE(right.is_cpu());
}

TEST_F(GpuGradients, FlatMemoryLiesOnTheDevice) {
  run_on_gpu([](GpuRun& run) {
    FlatMemory memory(*run.nccl, run.device);
    EXPECT_FALSE(memory.on_host());
    EXPECT_EQ(memory.alignment(), 64);
    const at::Tensor own = memory.own(10, at::kDouble);
    EXPECT_EQ(own.device(), run.device);
    EXPECT_EQ(own.abs().sum().item<double>(), 0);
    const FlatMemory::Block block = memory.exchanged(100, at::kFloat);
    EXPECT_EQ(block.tensor.device(), run.device);
    EXPECT_EQ(block.tensor.abs().sum().item<double>(), 0);
    EXPECT_FALSE(memory.common(10, at::kFloat).has_value());
    block.tensor.fill_(3);
    FlatMemory::clear(block.tensor, 10, 20);
    EXPECT_EQ(block.tensor.sum().item<double>(), 240);
    const at::Tensor copy = memory.own_copy(block.tensor);
    EXPECT_TRUE(at::equal(copy, block.tensor));
    EXPECT_NE(copy.data_ptr(), block.tensor.data_ptr());
    EXPECT_EQ(FlatMemory::address(block.tensor, 5), static_cast<std::byte*>(block.tensor.data_ptr()) + 20);
  });
}

TEST_F(GpuGradients, AWriteToAGuardedGradientIsNoticed) {
  const at::Tensor gradient = at::arange(6, at::TensorOptions(test::kGpu).dtype(at::kFloat)).view({2, 3}).t();
  const auto before = gradient.cpu();
  {
    GradientGuard guard(gradient);
    EXPECT_EQ(guard.view().strides(), gradient.strides());
    EXPECT_TRUE(at::equal(guard.view().cpu(), before));
    EXPECT_EQ(guard.view().norm().item<float>(), gradient.norm().item<float>());
    at::zeros_like(gradient).add_(guard.view()).mul_(2);
    EXPECT_FALSE(guard.written()) << "it was only read";
  }
  const std::function<void(at::Tensor)> writes[] = {[](at::Tensor view) { view.mul_(2); },
                                                    [](at::Tensor view) { view.data().mul_(2); },
                                                    [](at::Tensor view) {
                                                      view.copy_(at::ones({3, 2}));
                                                    },
                                                    [](at::Tensor view) { view.select(0, 1).zero_(); },
                                                    [](at::Tensor view) {
                                                      std::vector<at::Tensor> list{view};
                                                      at::_foreach_mul_(list, 2);
                                                    }};
  for (const auto& write : writes) {
    GradientGuard guard(gradient);
    write(guard.view());
    EXPECT_TRUE(guard.written());
    EXPECT_TRUE(at::equal(gradient.cpu(), before)) << "what is exchanged has changed";
  }
  EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
}

TEST_F(GpuGradients, GradientsOfABucketAreCopiedToTheirPlacesTogether) {
  run_on_gpu([](GpuRun& run) {
    Model model;
    move_model(*model, run.device);
    FlatParameters flat(*model, *run.nccl);
    const auto place = make_gradient_place(flat);
    const auto all = flat.parameters();
    const auto made = [&](std::size_t i, double value) { return at::full_like(all[i].gradient, value); };
    const auto sum_of = [&](std::size_t i) { return all[i].gradient.sum().item<double>(); };
    place->begin_backward();
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor gradient = made(i, 2);
      EXPECT_FALSE(place->settle(i, gradient));
      EXPECT_TRUE(place->may_write(i));
      place->put(i, gradient);
    }
    EXPECT_TRUE(place->settle(0, all[0].gradient)) << "it is there";
    const std::vector<std::size_t> bucket{0, 1, 3};
    gpus.take_counts();
    place->finish(bucket);
    EXPECT_EQ(gpus.take_counts().kernels, 1);
    for (const std::size_t i : {0, 1}) EXPECT_EQ(sum_of(i), 2.0 * static_cast<double>(all[i].gradient.numel())) << i;
    for (const std::size_t i : {2, 3}) EXPECT_EQ(sum_of(i), 0) << i;
    gpus.take_counts();
    place->finish(bucket);  // there is nothing left
    EXPECT_EQ(gpus.take_counts().kernels, 0);
    place->finish_all();
    EXPECT_EQ(sum_of(2), 2.0 * static_cast<double>(all[2].gradient.numel()));
    place->put(3, made(3, 5));  // of a backward that an exception ends
    place->begin_backward();
    place->finish_all();
    EXPECT_EQ(sum_of(3), 0);
  });
}

std::vector<at::Tensor> train_windows(Model model, comm::Communicator& communicator, comm::Communicator& host,
                                      profile::Recorder& recorder, bool sharded, int batches) {
  FlatParameters flat(*model, communicator);
  FlatOptimizer optimizer(AdamW{.lr = 0.01}, nullptr, flat);
  const comm::FusionPlan plans[] = {comm::plan_fusion(items_of(flat), 64), comm::plan_fusion(items_of(flat), 1 << 20)};
  GradientExchange exchange(flat, host, communicator, recorder);
  const GradientHooks hooks(flat, exchange);
  const FixedScale scale(1);
  std::unique_ptr<GradientStrategy> strategy;
  if (sharded) strategy = std::make_unique<Sharded>(flat, optimizer, communicator, recorder, scale);
  if (!sharded) strategy = std::make_unique<Replicated>(flat, optimizer, communicator, recorder, scale);
  for (int window = 0; window < 6; ++window) {
    const auto& plan = plans[window / 2 % 2];
    strategy->set_plan(plan);
    exchange.use(*strategy, plan);
    for (int batch = 0; batch < batches; ++batch) {
      exchange.begin_batch(batch == batches - 1);
      exchange.backward(model->loss(0.1 * (window + batch + 1), window % 3 == 1 && batch == 0));
    }
    const auto used = exchange.finish();
    strategy->update({used, 0.5, 0});
    exchange.end_window();
    optimizer.advance_schedule();
  }
  strategy.reset();
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model->parameters()) weights.push_back(parameter.detach().cpu());
  return weights;
}

// Tied, unused and strided parameters, two types, one or three batches a window, buckets that change.
TEST_F(GpuGradients, WindowsGiveTheWeightsOfTheCpu) {
  torch::manual_seed(3);
  const Model original;
  for (const int batches : {1, 3}) {
    for (const bool sharded : {false, true}) {
      std::vector<at::Tensor> on_cpu, on_gpu;
      test::run_communicator_ranks(test::TestWorld(1), "thread", [&](comm::Communicator& communicator) {
        const SystemClock clock;
        profile::Recorder recorder({}, clock, clock.monotonic());
        on_cpu = train_windows(copy_of(original), communicator, communicator, recorder, sharded, batches);
      });
      run_on_gpu([&](GpuRun& run) {
        gpus.delay_queries(2);
        Model model = copy_of(original);
        move_model(*model, run.device);
        on_gpu = train_windows(model, *run.nccl, *run.host, run.recorder, sharded, batches);
      });
      ASSERT_EQ(on_gpu.size(), on_cpu.size());
      for (std::size_t i = 0; i < on_cpu.size(); ++i) {
        EXPECT_TRUE(at::equal(on_gpu[i], on_cpu[i])) << i << (sharded ? " sharded" : " replicated");
      }
      EXPECT_FALSE(at::equal(on_cpu.front(), original->first)) << "nothing was trained";
    }
  }
}

// One of the two, with gradients that are the same on both.
struct Scaling {
  Scaling(const Model& original, comm::Communicator& communicator, profile::Recorder& recorder, at::Device device)
      : model(copy_of(original)) {
    move_model(*model, device);
    flat = std::make_unique<FlatParameters>(*model, communicator);
    scaling = make_gradient_scaling(*flat, communicator, recorder);
    for (std::size_t g = 0; g < flat->groups().size(); ++g) {
      own.push_back({g, 0, flat->groups()[g].values.numel()});
    }
    scaling->divide({&own, 1}, own);
  }
  // Every gradient is the parameter's value times `factor`.
  GradientScaling::Scaled prepare(double factor, double correction, double max_norm) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : flat->parameters()) parameter.gradient.copy_(parameter.tensor * factor);
    return scaling->prepare({{}, correction, max_norm});
  }
  Model model;
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<GradientScaling> scaling;
  std::vector<FlatRange> own;
};

TEST_F(GpuGradients, ScalingIsTheHosts) {
  torch::manual_seed(4);
  const Model original;
  run_on_gpu([&](GpuRun& run) {
    Scaling host(original, *run.host, run.recorder, at::kCPU);
    Scaling gpu(original, *run.nccl, run.recorder, run.device);
    struct Case {
      double factor, correction, max_norm;
      bool finite = true;
    };
    const double infinity = std::numeric_limits<double>::infinity();
    const Case cases[] = {{1, 1, 0},
                          {1, 0.25, 0},
                          {1, 1, 0.5},
                          {1, 0.25, 0.5},
                          {1, 1, 1e6},
                          {1, 0.25, 1e6},
                          {infinity, 1, 0.5, false},
                          {std::nan(""), 0.5, 0.5, false}};
    for (const auto& [factor, correction, max_norm, finite] : cases) {
      SCOPED_TRACE(testing::Message() << factor << " " << correction << " " << max_norm);
      const GradientScaling::Scaled expected = host.prepare(factor, correction, max_norm);
      gpus.take_counts();
      const GradientScaling::Scaled scaled = gpu.prepare(factor, correction, max_norm);
      EXPECT_EQ(gpus.take_counts().host_syncs, 0);
      ASSERT_EQ(scaled.norm.has_value(), expected.norm.has_value());
      if (scaled.norm) {
        const double norm = scaled.norm->item<double>();
        const double wanted = expected.norm->item<double>();
        EXPECT_TRUE(finite ? std::abs(norm - wanted) <= 1e-6 * wanted : !std::isfinite(norm)) << norm << " " << wanted;
      }
      EXPECT_FALSE(expected.device.divisor.defined());
      EXPECT_EQ(scaled.device.divisor.defined(), correction != 1 || max_norm > 0);
      const double divisor = scaled.device.divisor.defined() ? scaled.device.divisor.item<double>() : 1;
      for (std::size_t g = 0; g < host.flat->groups().size(); ++g) {
        const at::Tensor by_gpu = gpu.flat->groups()[g].gradients.cpu() / divisor;
        EXPECT_TRUE(at::allclose(by_gpu, host.flat->groups()[g].gradients, 1e-6, 1e-12, /*equal_nan=*/true));
      }
    }
  });
}

TEST_F(GpuGradients, AnUpdateReadsBfloat16GradientsAndWritesAShadow) {
  torch::manual_seed(5);
  for (const Optimizer& optimizer : {Optimizer(Sgd{.momentum = 0.9}), Optimizer(AdamW{})}) {
    const auto update = std::visit([](const auto& settings) { return settings.make_update(); }, optimizer);
    constexpr std::int64_t kCount = 4096;
    const at::Tensor values = torch::randn({kCount}), shadow = torch::zeros({kCount}, at::kBFloat16);
    const at::Tensor gpu_values = values.to(test::kGpu), gpu_shadow = shadow.to(test::kGpu);
    std::vector<at::Tensor> states, gpu_states;
    for (std::size_t s = 0; s < update->state_names().size(); ++s) {
      states.push_back(torch::zeros({kCount}));
      gpu_states.push_back(states.back().to(test::kGpu));
    }
    for (int i = 0; i < 2; ++i) {
      const at::Tensor gradients = torch::randn({kCount}).to(at::kBFloat16), gpu_gradients = gradients.to(test::kGpu);
      update->update(values, gradients, states, {0.01, i, {}, shadow});
      gpus.take_counts();
      update->update(gpu_values, gpu_gradients, gpu_states, {0.01, i, {}, gpu_shadow});
      EXPECT_EQ(gpus.take_counts().host_syncs, 0);
    }
    EXPECT_TRUE(at::equal(gpu_values.cpu(), values));
    EXPECT_TRUE(at::equal(gpu_shadow.cpu(), shadow));
    for (std::size_t s = 0; s < states.size(); ++s) EXPECT_TRUE(at::equal(gpu_states[s].cpu(), states[s]));
  }
  EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
}

// Not all of them at once, which would take as much memory as the values. dtrain's kernels do not take float64.
TEST_F(GpuGradients, AnUpdateConvertsGradientsPieceByPiece) {
  torch::manual_seed(6);
  const auto update = Sgd{.momentum = 0.9}.make_update();
  constexpr std::int64_t kCount = (std::int64_t{8} << 20) + 5;
  const at::Tensor values = torch::randn({kCount}, at::kDouble), gradients = torch::randn({kCount}).to(at::kBFloat16);
  const std::vector<at::Tensor> states{torch::zeros({kCount}, at::kDouble)};
  const at::Tensor gpu_values = values.to(test::kGpu), gpu_gradients = gradients.to(test::kGpu);
  const std::vector<at::Tensor> gpu_states{states[0].to(test::kGpu)};
  const auto memory = device_memory(test::kGpu);
  const std::int64_t before = memory->take().allocated;
  update->update(gpu_values, gpu_gradients, gpu_states, {0.01, 1});
  EXPECT_LT(memory->take().peak - before, kCount * 8 * 3 / 4);
  update->update(values, gradients, states, {0.01, 1});
  EXPECT_TRUE(at::equal(gpu_values.cpu(), values));
  EXPECT_TRUE(at::equal(gpu_states[0].cpu(), states[0]));
  EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
}

}  // namespace
}  // namespace dtrain::train
