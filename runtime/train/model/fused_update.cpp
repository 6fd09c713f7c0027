#include "model/fused_update.h"

#include <algorithm>
#include <utility>

#include "parallel/parallel.h"

namespace dtrain::train {
namespace {

// Threads divide an update into pieces of a multiple of this: a line of memory of the shadow, the narrowest array. As a
// multiple of 8 it leaves the bits alone.
constexpr std::int64_t kUnit = 32;
// Fewer elements a thread would not be worth waking it.
constexpr std::int64_t kLeastPerThread = 64 * 1024;
// A shadow of more elements would push everything else out of the caches, and would not stay there itself.
constexpr std::int64_t kStreamFrom = 2 * 1024 * 1024;
// Elements that stay in a core's cache from the conversion of gradients to the copy of values.
constexpr std::int64_t kConvertedAtOnce = 64 * 1024;
// On a device: their conversion takes little memory, and far longer than the launch of its kernel.
constexpr std::int64_t kConvertedAtOnceOnDevice = 4 * 1024 * 1024;

void update_on_host(const FusedKernels& kernels, const at::Tensor& values, const at::Tensor& gradients,
                    at::TensorList states, const UpdateStep& step) {
  const std::int64_t count = values.numel();
  kernels::Stretch whole;
  whole.values = values.mutable_data_ptr<float>();
  if (gradients.scalar_type() == at::kBFloat16) {
    whole.narrow_gradients = static_cast<const kernels::Bfloat16*>(gradients.const_data_ptr());
  } else {
    whole.gradients = gradients.const_data_ptr<float>();
  }
  if (step.shadow.defined()) whole.shadow = static_cast<kernels::Bfloat16*>(step.shadow.mutable_data_ptr());
  whole.stream = count >= kStreamFrom;
  std::vector<float*> starts;
  for (const at::Tensor& state : states) starts.push_back(state.mutable_data_ptr<float>());
  parallel_for(
      (count + kUnit - 1) / kUnit, kLeastPerThread / kUnit, [&](std::int64_t first_unit, std::int64_t end_unit) {
        const std::int64_t begin = first_unit * kUnit;
        const kernels::Stretch part = whole.part(static_cast<std::size_t>(begin),
                                                 static_cast<std::size_t>(std::min(end_unit * kUnit, count) - begin));
        std::vector<float*> of_part;
        for (float* const start : starts) of_part.push_back(start + begin);
        kernels.own(part, of_part, step);
      });
}

// A type that is not the values' is converted first, and the shadow copied afterwards, block by block.
void update_with_libtorch(const FusedKernels& kernels, const at::Tensor& values, const at::Tensor& gradients,
                          at::TensorList states, const UpdateStep& step) {
  const bool converts = gradients.scalar_type() != values.scalar_type();
  if (!converts && !step.shadow.defined()) return kernels.libtorch(values, gradients, states, step);
  const std::int64_t count = values.numel();
  const std::int64_t block = values.device().is_cpu() ? kConvertedAtOnce : kConvertedAtOnceOnDevice;
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, std::min(block, count - begin)); };
    std::vector<at::Tensor> states_part;
    for (const at::Tensor& state : states) states_part.push_back(part(state));
    const at::Tensor gradients_part = part(gradients).to(values.scalar_type());
    kernels.libtorch(part(values), gradients_part, states_part, step);
    if (step.shadow.defined()) part(step.shadow).copy_(part(values));
  }
}

}  // namespace

at::Tensor number_for_libtorch(const at::Tensor& values, const UpdateStep& step) {
  if (step.number.defined()) return step.number;
  return at::full({}, static_cast<double>(step.updates + 1), values.options().dtype(at::kFloat));
}

FusedUpdate::FusedUpdate(std::unique_ptr<const FusedKernels> kernels)
    : kernels_(std::move(kernels)), difference_(difference_from_libtorch(*kernels_)) {}

UpdateKernel FusedUpdate::kernel(c10::DeviceType device, at::ScalarType type) const {
  if (device != c10::DeviceType::CPU || type != at::kFloat) return {};
  if (difference_) return {"libtorch", "dtrain's kernel gives other bits than libtorch's in " + *difference_};
  return {"dtrain", ""};
}

void FusedUpdate::update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                         const UpdateStep& step) const {
  const bool own = !difference_ && values.device().is_cpu() && values.scalar_type() == at::kFloat &&
                   !step.device.divisor.defined() &&  // libtorch's replaces gradients by their quotient
                   (!step.shadow.defined() || step.shadow.scalar_type() == at::kBFloat16);
  if (own) {
    update_on_host(*kernels_, values, gradients, states, step);
  } else {
    update_with_libtorch(*kernels_, values, gradients, states, step);
  }
}

}  // namespace dtrain::train
