// dtrain's own kernels for GPUs as training calls them, on GPUs that are not there: the module launches them through
// the CUDA runtime, and the fake runs their sources on the host.
#include <c10/util/Exception.h>

#include "dtrain/config/optimizers.h"
#include "gpu_run.h"
#include "gpu_with_kernels.h"
#include "model/flat_optimizer.h"
#include "model/model_tensors.h"

namespace dtrain::train {
namespace {

using test::gpus;
using test::kGpu;
using testing::HasSubstr;
using testing::IsEmpty;

using GpuKernels = test::GpuWithKernels;

struct Updated {
  at::Tensor values, first, second, shadow;
  explicit Updated(std::int64_t count, std::optional<at::ScalarType> copy)
      : values(at::randn({count}, at::kFloat)),
        first(at::zeros({count}, at::kFloat)),
        second(at::zeros({count}, at::kFloat)),
        shadow(copy ? at::zeros({count}, *copy) : at::Tensor()) {}
  Updated on_gpu() const {
    Updated copy = *this;
    for (at::Tensor* tensor : {&copy.values, &copy.first, &copy.second, &copy.shadow}) {
      if (tensor->defined()) *tensor = tensor->to(kGpu);
    }
    return copy;
  }
  void update(const OptimizerUpdate& by, const at::Tensor& gradients, UpdateStep step) const {
    step.shadow = shadow;
    by.update(values, gradients, states_of(by), step);
  }
  std::vector<at::Tensor> states_of(const OptimizerUpdate& by) const {
    const std::vector<at::Tensor> both{first, second};
    return {both.begin(), both.begin() + static_cast<std::ptrdiff_t>(by.state_names().size())};
  }
  void expect_bits_of(const Updated& other) const {
    EXPECT_TRUE(at::equal(values.cpu(), other.values.cpu()));
    EXPECT_TRUE(at::equal(first.cpu(), other.first.cpu()));
    EXPECT_TRUE(at::equal(second.cpu(), other.second.cpu()));
    if (shadow.defined()) {
      EXPECT_TRUE(at::equal(shadow.cpu(), other.shadow.cpu()));
    }
  }
};

at::Tensor scalar_on_gpu(double value) {
  return at::full({}, value, at::kFloat).to(kGpu);
}

TEST_F(GpuKernels, AnUpdateByAdamOrSgdIsOneKernelWithTheBitsOfTheCpu) {
  const Optimizer optimizers[] = {Adam{.weight_decay = 0.1}, AdamW{}, Sgd{}, Sgd{.momentum = 0.9, .dampening = 0.5},
                                  Sgd{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}};
  for (const Optimizer& optimizer : optimizers) {
    const auto update = std::visit([](const auto& settings) { return settings.make_update(); }, optimizer);
    EXPECT_EQ(update->kernel(at::kCUDA, at::kFloat).whose, "dtrain");
    for (const auto& copy : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16), std::optional(at::kHalf)}) {
      for (const at::ScalarType of_gradients : {at::kFloat, at::kBFloat16}) {
        for (const std::int64_t count : {8, 64, 4096}) {
          SCOPED_TRACE(testing::Message() << count << " elements, gradients of " << of_gradients);
          const Updated on_cpu(count, copy), on_gpu = on_cpu.on_gpu();
          for (int i = 0; i < 3; ++i) {
            const at::Tensor gradients = at::randn({count}, at::kFloat).to(of_gradients),
                             on_device = gradients.to(kGpu);
            on_cpu.update(*update, gradients, {.rate = 0.01, .updates = i});
            gpus.take_counts();
            on_gpu.update(*update, on_device, {.rate = 0.01, .updates = i});
            const auto counts = gpus.take_counts();
            EXPECT_EQ(counts.kernels, 1);
            EXPECT_EQ(counts.host_syncs, 0);
          }
          on_gpu.expect_bits_of(on_cpu);
        }
      }
    }
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

// Square roots on the CPU are not always the nearest numbers, so the values differ in their last bits.
TEST_F(GpuKernels, LambUpdatesSeveralParametersByThreeKernels) {
  const auto lamb = Lamb{}.make_update();
  EXPECT_EQ(lamb->kernel(at::kCUDA, at::kFloat).whose, "dtrain");
  const std::vector<std::int64_t> ends{64, 80, 5008, 5168};
  const Updated on_cpu(ends.back(), at::kBFloat16), on_gpu = on_cpu.on_gpu();
  for (int i = 0; i < 3; ++i) {
    const at::Tensor gradients = at::randn({ends.back()}, at::kFloat), on_device = gradients.to(kGpu);
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, end - begin); };
      lamb->update(part(on_cpu.values), part(gradients), {part(on_cpu.first), part(on_cpu.second)},
                   {.rate = 0.01, .updates = i});
      begin = end;
    }
    UpdateStep step{.rate = 0.01, .updates = i};
    step.shadow = on_gpu.shadow;
    gpus.take_counts();
    EXPECT_TRUE(lamb->update_several(on_gpu.values, on_device, on_gpu.states_of(*lamb), step, ends));
    const auto counts = gpus.take_counts();
    EXPECT_EQ(counts.kernels, 3);
    EXPECT_EQ(counts.host_syncs, 0);
  }
  EXPECT_TRUE(at::equal(on_gpu.first.cpu(), on_cpu.first));
  EXPECT_TRUE(at::equal(on_gpu.second.cpu(), on_cpu.second));
  EXPECT_TRUE(at::allclose(on_gpu.values.cpu(), on_cpu.values, 1e-5, 1e-6));
  EXPECT_TRUE(at::equal(on_gpu.shadow.cpu(), on_gpu.values.cpu().to(at::kBFloat16)));
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuKernels, OnlyParametersThatFollowEachOtherAreUpdatedTogether) {
  run_on_gpu([](GpuRun& run) {
    torch::nn::Module model;
    for (const std::int64_t size : {20, 40, 30, 50}) {
      model.register_parameter("p" + std::to_string(size), torch::randn({size}));
    }
    move_model(model, run.device);
    FlatParameters flat(model, *run.nccl);
    FlatOptimizer optimizer(Lamb{.lr = 0.1}, nullptr, flat);
    std::vector<at::Tensor> before;
    for (const auto& parameter : flat.parameters()) before.push_back(parameter.tensor.detach().cpu().clone());
    flat.groups()[0].gradients.fill_(1);
    const std::vector<std::uint8_t> used{1, 0, 1, 1};
    optimizer.begin_step(used);
    optimizer.update({0, 0, flat.groups()[0].values.numel()});
    optimizer.end_step(used);
    for (std::size_t i = 0; i < used.size(); ++i) {
      EXPECT_EQ(at::equal(flat.parameters()[i].tensor.detach().cpu(), before[i]), used[i] == 0) << i;
    }
  });
}

TEST_F(GpuKernels, AMatrixIsUpdatedByMuonWithTheBitsOfTheCpu) {
  const auto muon = Muon{}.make_update();
  EXPECT_EQ(muon->kernel(at::kCUDA, at::kFloat).whose, "dtrain");
  for (const auto& [rows, columns] : {std::pair(24, 40), std::pair(40, 24), std::pair(16, 16), std::pair(3, 5)}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns);
    const std::int64_t count = rows * columns, padded = (count + 15) / 16 * 16;
    const Updated on_cpu(padded, at::kBFloat16);
    on_cpu.values.narrow(0, count, padded - count).zero_();
    const Updated on_gpu = on_cpu.on_gpu();
    for (int i = 0; i < 3; ++i) {
      const at::Tensor gradients = at::randn({padded}, at::kFloat);
      gradients.narrow(0, count, padded - count).zero_();
      const at::Tensor on_device = gradients.to(kGpu);
      UpdateStep step{.rate = 0.02, .updates = i};
      step.form = at::empty({rows, columns}, at::kFloat);
      on_cpu.update(*muon, gradients, step);
      gpus.take_counts();
      on_gpu.update(*muon, on_device, step);
      EXPECT_EQ(gpus.take_counts().host_syncs, 0);
    }
    on_gpu.expect_bits_of(on_cpu);
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuKernels, AnUpdateReadsWhatTheDeviceAloneKnows) {
  const auto update = AdamW{}.make_update();
  const Updated on_cpu(64, at::kBFloat16), on_gpu = on_cpu.on_gpu();
  const at::Tensor gradients = at::randn({64}, at::kFloat), on_device = (gradients * 4).to(kGpu);
  on_cpu.update(*update, gradients, {.rate = 0.5, .updates = 6});
  UpdateStep step{.rate = 1000, .updates = 1000};
  step.device = {.divisor = scalar_on_gpu(4), .found_inf = scalar_on_gpu(0)};
  step.number = scalar_on_gpu(7);
  step.rate_on_device = scalar_on_gpu(0.5);
  on_gpu.update(*update, on_device, step);
  on_gpu.expect_bits_of(on_cpu);
  step.device.found_inf = scalar_on_gpu(1);
  on_gpu.update(*update, on_device, step);
  on_gpu.expect_bits_of(on_cpu);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuKernels, AGraphReplaysAnUpdate) {
  const auto update = AdamW{}.make_update();
  const Updated eager = Updated(512, at::kBFloat16).on_gpu();
  const Updated replayed = Updated(512, at::kBFloat16).on_gpu();
  for (const auto& [to, from] : {std::pair(replayed.values, eager.values), std::pair(replayed.shadow, eager.shadow)}) {
    to.copy_(from);
  }
  const at::Tensor gradients = at::randn({512}, at::kFloat).to(kGpu);
  UpdateStep step{.rate = 0.01};
  step.number = scalar_on_gpu(1);
  test::guard().synchronizeDevice(kGpu.index());
  const c10::StreamGuard on(test::pool_stream());
  gpus.begin_capture();
  replayed.update(*update, gradients, step);
  const int graph = gpus.end_capture();
  for (int i = 0; i < 3; ++i) {
    eager.update(*update, gradients, step);
    gpus.replay(graph);
  }
  replayed.expect_bits_of(eager);
  gpus.destroy_graph(graph);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuKernels, AMissingWaitBeforeAnUpdateIsReported) {
  const auto update = AdamW{}.make_update();
  const Updated on_gpu = Updated(64, {}).on_gpu();
  const at::Tensor gradients = at::zeros({64}, kGpu);
  test::guard().synchronizeDevice(kGpu.index());
  {
    const c10::StreamGuard elsewhere(test::pool_stream());
    gradients.fill_(1);
  }
  on_gpu.update(*update, gradients, {.rate = 0.01});
  EXPECT_THAT(gpus.take_reports(), testing::ElementsAre(HasSubstr("dtrain_update_adam")));
}

TEST_F(GpuKernels, ALostDeviceIsAnErrorOfCuda) {
  const auto update = AdamW{}.make_update();
  const Updated on_gpu = Updated(64, {}).on_gpu();
  const at::Tensor gradients = at::zeros({64}, kGpu);
  gpus.lose_device(1);
  gradients.fill_(1);
  EXPECT_THROW(on_gpu.update(*update, gradients, {.rate = 0.01}), c10::AcceleratorError);
}

TEST_F(GpuKernels, TheSumOfSquaresOfManyTensors) {
  for (const std::size_t tensors : {1, 3, 40}) {
    std::vector<at::Tensor> of_cpu, of_gpu;
    for (std::size_t i = 0; i < tensors; ++i) {
      of_cpu.push_back(at::randn({static_cast<std::int64_t>(1 + 97 * i)}, at::kFloat));
      of_gpu.push_back(of_cpu.back().to(kGpu));
    }
    const double expected = at::cat(of_cpu).to(at::kDouble).square().sum().item<double>();
    gpus.take_counts();
    const std::optional<at::Tensor> sum = sum_of_squares_on_device(of_gpu);
    const auto counts = gpus.take_counts();
    EXPECT_EQ(counts.kernels, tensors > 32 ? 3 : 2);
    EXPECT_EQ(counts.host_syncs, 0);
    ASSERT_TRUE(sum.has_value());
    EXPECT_NEAR(sum->item<double>(), expected, 4e-7 * expected);
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(GpuKernels, OtherTypesAreLibtorchs) {
  EXPECT_EQ(RmsProp{}.make_update()->kernel(at::kCUDA, at::kFloat).whose, "libtorch");
  EXPECT_EQ(AdamW{}.make_update()->kernel(at::kCUDA, at::kDouble).whose, "libtorch");
  EXPECT_FALSE(sum_of_squares_on_device(at::zeros({8}, at::TensorOptions(kGpu).dtype(at::kDouble))).has_value());
  EXPECT_FALSE(sum_of_squares_on_device(at::zeros({8}, at::kFloat)).has_value());
  const at::Tensor values = at::ones({8}, at::TensorOptions(kGpu).dtype(at::kDouble));
  const at::Tensor first = at::zeros_like(values), second = at::zeros_like(values);
  AdamW{}.make_update()->update(values, at::ones_like(values), {first, second}, {.rate = 0.01});
  EXPECT_LT(values.max().item<double>(), 1);
}

}  // namespace
}  // namespace dtrain::train
