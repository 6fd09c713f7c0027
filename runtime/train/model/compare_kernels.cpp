// What FusedUpdate compares before it uses dtrain's kernel.
#include <cmath>
#include <limits>
#include <random>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "model/fused_update.h"

namespace dtrain::train {
namespace {

constexpr int kUpdates = 3;

// Uniform in [-1, 1), but for a few that make the first update special.
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

// Elements from 0 on, -1 for none.
template <class Bits, class IsNan>
std::int64_t first_other_bits(const at::Tensor& a, const at::Tensor& b, const IsNan& both_nan) {
  const auto* const left = static_cast<const Bits*>(a.const_data_ptr());
  const auto* const right = static_cast<const Bits*>(b.const_data_ptr());
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    if (left[i] != right[i] && !both_nan(i)) return i;
  }
  return -1;
}

}  // namespace

std::optional<std::string> difference_from_libtorch(const FusedKernels& kernels) {
  const at::NoGradGuard no_grad;
  // Whole vectors for each of libtorch's threads, however it divides them, then elements that fill no vector.
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
  for (int i = 0; i < kUpdates; ++i) {
    const UpdateStep step{.rate = 0.1 / (i + 1), .updates = i};
    at::Tensor gradients = random_numbers(random, count);
    kernels::Stretch stretch;
    stretch.count = static_cast<std::size_t>(count);
    stretch.values = own_values.mutable_data_ptr<float>();
    stretch.shadow = static_cast<kernels::Bfloat16*>(shadow.mutable_data_ptr());
    at::Tensor narrow;
    if (i + 1 == kUpdates) {
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

}  // namespace dtrain::train
