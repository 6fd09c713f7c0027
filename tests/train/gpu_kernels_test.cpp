// dtrain's own kernels for GPUs as training calls them, on GPUs that are not there: the module launches them through
// the CUDA runtime, and the fake runs their sources on the host.
#include <c10/util/Exception.h>

#include "device/device_kernels.h"
#include "dtrain/config/optimizers.h"
#include "gpus.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

using test::gpus;
using test::kGpu;
using testing::HasSubstr;
using testing::IsEmpty;

class GpuKernels : public test::OnGpus {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
#ifdef DTRAIN_HAS_CUDA_KERNELS
    ASSERT_EQ(why_no_device_kernels(), "");
#else
    GTEST_SKIP() << "built without nvcc";
#endif
    at::manual_seed(17);
  }
};

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
    by.update(values, gradients, {first, second}, step);
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

TEST_F(GpuKernels, AnUpdateByAdamIsOneKernelWithTheBitsOfTheCpu) {
  const auto adam = Adam{.weight_decay = 0.1}.make_update();
  const auto adamw = AdamW{}.make_update();
  for (const OptimizerUpdate* const update : {adam.get(), adamw.get()}) {
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
  EXPECT_EQ(Sgd{}.make_update()->kernel(at::kCUDA, at::kFloat).whose, "libtorch");
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
