#include "model/fused_update.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "numerics/parallel.h"

namespace dtrain::train {
namespace {

// Threads divide an update into pieces of a multiple of this number of elements: a cache line of the shadow, the
// narrowest array. A multiple of 8 does not change the bits.
constexpr std::int64_t kUnit = 32;
// For fewer elements a thread is not worth waking.
constexpr std::int64_t kLeastPerThread = 64 * 1024;
// From this many elements on, a shadow would push all else out of the caches and not stay there itself.
constexpr std::int64_t kStreamFrom = 2 * 1024 * 1024;
// Elements that stay in a core's cache from the conversion of gradients to the copy of values.
constexpr std::int64_t kConvertedAtOnce = 64 * 1024;
// On a device the conversion takes little memory, and far longer than the launch of its kernel.
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

// Converts gradients of another type than the values' first, and copies the shadow afterwards, block by block.
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

constexpr int kComparedUpdates = 3;

// Returns numbers uniform in [-1, 1), except for a few that make the first update special.
at::Tensor random_numbers(std::minstd_rand& random, std::int64_t count) {
  const at::Tensor numbers = at::empty({count}, at::kFloat);
  float* const data = numbers.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(static_cast<double>(random()) / std::minstd_rand::max() * 2 - 1);
  }
  using Limits = std::numeric_limits<float>;
  std::int64_t at = 0;
  for (const float special : {0.0f, -0.0f, Limits::infinity(), Limits::quiet_NaN(), Limits::denorm_min()}) {
    data[at++] = special;
  }
  return numbers;
}

// Returns the index of the first element with other bits, or -1.
template <class Bits, class IsNan>
std::int64_t first_other_bits(const at::Tensor& a, const at::Tensor& b, const IsNan& both_nan) {
  const auto* const left = static_cast<const Bits*>(a.const_data_ptr());
  const auto* const right = static_cast<const Bits*>(b.const_data_ptr());
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    if (left[i] != right[i] && !both_nan(i)) return i;
  }
  return -1;
}

// Returns where the own kernel first differs from libtorch's in a bit: "element 17 of exp_avg after update 2"; NaN
// equals NaN. Updates numbers that are the same in every process, on libtorch's threads.
std::optional<std::string> difference_from_libtorch(const FusedKernels& kernels) {
  const at::NoGradGuard no_grad;
  // Whole vectors for each of libtorch's threads, in whatever way it divides them, then elements that fill no vector.
  const std::int64_t threads = at::get_num_threads();
  const std::int64_t whole = 16 * threads * (1 + 16 / threads), rest = 7, count = whole + rest;
  std::minstd_rand random(18);
  const std::vector<std::string> names = kernels.state_names();
  const at::Tensor values = random_numbers(random, count);
  const at::Tensor own_values = values.clone();
  const at::Tensor shadow = at::empty({count}, at::kBFloat16);
  std::vector<at::Tensor> states, own_states;
  for (std::size_t s = 0; s < names.size(); ++s) {
    states.push_back(at::zeros({count}, at::kFloat));
    own_states.push_back(at::zeros({count}, at::kFloat));
  }
  for (int i = 0; i < kComparedUpdates; ++i) {
    const UpdateStep step{.rate = 0.1 / (i + 1), .updates = i};
    at::Tensor gradients = random_numbers(random, count);
    kernels::Stretch stretch;
    stretch.count = static_cast<std::size_t>(count);
    stretch.values = own_values.mutable_data_ptr<float>();
    stretch.shadow = static_cast<kernels::Bfloat16*>(shadow.mutable_data_ptr());
    at::Tensor narrow;
    if (i + 1 == kComparedUpdates) {
      narrow = gradients.to(at::kBFloat16);
      gradients = narrow.to(at::kFloat);
      stretch.narrow_gradients = static_cast<const kernels::Bfloat16*>(narrow.const_data_ptr());
    } else {
      stretch.gradients = gradients.const_data_ptr<float>();
    }
    const auto update = [&](std::int64_t begin, std::int64_t size) {
      const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, size); };
      std::vector<at::Tensor> states_part;
      std::vector<float*> own_part;
      for (const at::Tensor& state : states) states_part.push_back(part(state));
      for (const at::Tensor& state : own_states) own_part.push_back(state.mutable_data_ptr<float>() + begin);
      kernels.libtorch(part(values), part(gradients), states_part, step);
      kernels.own(stretch.part(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)), own_part, step);
    };
    update(0, whole);
    update(whole, rest);

    const auto find = [&](const at::Tensor& a, const at::Tensor& b) {
      const float* const left = a.const_data_ptr<float>();
      const float* const right = b.const_data_ptr<float>();
      return first_other_bits<std::uint32_t>(
          a, b, [&](std::int64_t at) { return std::isnan(left[at]) && std::isnan(right[at]); });
    };
    const auto say = [&](std::int64_t element, const std::string& of) {
      return "element " + std::to_string(element) + " of " + of + " after update " + std::to_string(i + 1);
    };
    if (const auto at = find(own_values, values); at >= 0) return say(at, "the values");
    for (std::size_t s = 0; s < names.size(); ++s) {
      if (const auto at = find(own_states[s], states[s]); at >= 0) return say(at, names[s]);
    }
    const auto at = first_other_bits<std::uint16_t>(shadow, values.to(at::kBFloat16), [](auto) { return false; });
    if (at >= 0) return say(at, "the copy in bfloat16");
  }
  return std::nullopt;
}

}  // namespace

at::Tensor number_for_libtorch(const at::Tensor& values, const UpdateStep& step) {
  if (step.number.defined()) return step.number;
  return at::full({}, static_cast<double>(step.updates + 1), values.options().dtype(at::kFloat));
}

FusedUpdate::FusedUpdate(std::unique_ptr<const FusedKernels> kernels)
    : kernels_(std::move(kernels)), difference_(difference_from_libtorch(*kernels_)) {}

UpdateKernel FusedUpdate::kernel(c10::DeviceType device, at::ScalarType type) const {
  if (type != at::kFloat) return {};
  if (device == c10::DeviceType::CUDA) return kernel_for_gpus();
  if (device != c10::DeviceType::CPU) return {};
  if (difference_) return {"libtorch", "dtrain's kernel gives other bits than libtorch's in " + *difference_};
  return {"dtrain", ""};
}

void FusedUpdate::update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                         const UpdateStep& step) const {
  if (values.is_cuda() && kernels_->on_device(tensors_for_kernels(values, gradients, states, step))) return;
  const bool own = !difference_ && values.device().is_cpu() && values.scalar_type() == at::kFloat &&
                   !step.device.divisor.defined() &&  // libtorch's kernel replaces gradients by their quotient
                   (!step.shadow.defined() || step.shadow.scalar_type() == at::kBFloat16);
  if (own) {
    update_on_host(*kernels_, values, gradients, states, step);
  } else {
    update_with_libtorch(*kernels_, values, gradients, states, step);
  }
}

}  // namespace dtrain::train
