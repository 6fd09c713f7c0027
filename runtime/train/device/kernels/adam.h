// Adam and AdamW of flat parameters in one pass over memory: divides the gradients (mean over ranks, clipping), updates
// both moments and the values, and writes the copy of the values in a narrower type.
//
// Algorithms: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (arXiv:1412.6980), algorithm 1; Loshchilov
// and Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101), algorithm 2. The operations and their order
// are those of dtrain's kernel for CPUs (numerics/update_kernel.cpp), so the bits are the same.
//
// Bound: a parameter takes 28 bytes (reads gradient, value and two moments, writes three of them), 30 with the copy and
// 28 with bfloat16 gradients as well; and about 15 operations in float32. At 0.5 operations a byte it is bound by
// memory on every GPU: 124 million parameters with a copy take at least 3.7 GB / 3.35 TB/s = 1.1 ms on an H100.
// libtorch's fused kernel also writes the divided gradients and computes in float64, and the copy takes a pass of its
// own: 38 bytes.
#pragma once

#include "kernel.h"

namespace dtrain::train::cuda {

struct AdamArguments {
  std::int64_t count = 0;
  float* values = nullptr;
  // One of the two is set. They are only read.
  const float* gradients = nullptr;
  const std::uint16_t* narrow_gradients = nullptr;  // bfloat16
  float* average = nullptr;                         // of the gradient
  float* square = nullptr;                          // average of the gradient's square
  std::uint16_t* shadow = nullptr;                  // the copy; null: none
  bool shadow_is_float16 = false;                   // else it is bfloat16
  // Values that the GPU alone knows, one element each; null: as UpdateStep says.
  const float* number_on_device = nullptr;
  const float* rate_on_device = nullptr;
  const float* divisor = nullptr;
  const float* found_inf = nullptr;
  double number = 1;  // of this update, from 1
  double rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;  // AdamW
};

// What is the same for all elements.
struct AdamFactors {
  float negative_step, new_part, square_old, square_new, correction, eps, decay, divisor;
  bool mostly_old, has_decay, decoupled, divides, skips, packs;
};

template <class Block>
DTRAIN_DEVICE AdamFactors adam_factors(Block& block, const AdamArguments& a) {
  const auto scalar = [&](const float* on_device, double otherwise) {
    return on_device ? static_cast<double>(block.array(on_device, 1).template get<1>(0).lane[0]) : otherwise;
  };
  const double number = scalar(a.number_on_device, a.number), rate = scalar(a.rate_on_device, a.rate);
  AdamFactors f;
  f.negative_step = static_cast<float>(-(rate / (1 - pow(a.beta1, number))));
  f.new_part = static_cast<float>(1 - a.beta1);
  f.square_old = static_cast<float>(a.beta2);
  f.square_new = static_cast<float>(1 - a.beta2);
  f.correction = static_cast<float>(sqrt(1 - pow(a.beta2, number)));
  f.eps = static_cast<float>(a.eps);
  f.decay = static_cast<float>(a.decoupled ? fma(-rate, a.weight_decay, 1.0) : a.weight_decay);
  f.divisor = static_cast<float>(scalar(a.divisor, 1));
  f.mostly_old = fabsf(f.new_part) < 0.5f;
  f.has_decay = a.weight_decay != 0;
  f.decoupled = a.decoupled;
  f.divides = a.divisor != nullptr;
  f.skips = scalar(a.found_inf, 0) != 0;
  f.packs = is_aligned(a.values, 16) && is_aligned(a.gradients, 16) && is_aligned(a.narrow_gradients, 8) &&
            is_aligned(a.average, 16) && is_aligned(a.square, 16) && is_aligned(a.shadow, 8);
  return f;
}

// Updates one element. `average` and `square` are replaced.
DTRAIN_DEVICE float adam_element(const AdamFactors& f, float value, float gradient, float& average, float& square) {
  if (f.divides) gradient = gradient / f.divisor;
  if (f.has_decay && f.decoupled) value = value * f.decay;
  if (f.has_decay && !f.decoupled) gradient = fmaf(value, f.decay, gradient);
  const float step = gradient - average;
  average = f.mostly_old ? fmaf(f.new_part, step, average) : fmaf(f.new_part - 1, step, gradient);
  square = fmaf(f.square_new * gradient, gradient, square * f.square_old);
  const float divisor = sqrtf(square) / f.correction + f.eps;
  return value + f.negative_step * average / divisor;
}

// Updates the `n` elements from `begin` on.
template <int n, class Block>
DTRAIN_DEVICE void adam_pack(Block& block, const AdamArguments& a, const AdamFactors& f, std::int64_t begin) {
  const auto values = block.array(a.values, a.count);
  const auto averages = block.array(a.average, a.count);
  const auto squares = block.array(a.square, a.count);
  Pack<float, n> value = values.template get<n>(begin), average = averages.template get<n>(begin),
                 square = squares.template get<n>(begin), gradient;
  if (a.gradients) {
    gradient = block.array(a.gradients, a.count).template get<n>(begin);
  } else {
    const auto narrow = block.array(a.narrow_gradients, a.count).template get<n>(begin);
    for (int i = 0; i < n; ++i) gradient.lane[i] = from_bfloat16(narrow.lane[i]);
  }
  for (int i = 0; i < n; ++i) {
    value.lane[i] = adam_element(f, value.lane[i], gradient.lane[i], average.lane[i], square.lane[i]);
  }
  values.template put<n>(begin, value);
  averages.template put<n>(begin, average);
  squares.template put<n>(begin, square);
  if (!a.shadow) return;
  Pack<std::uint16_t, n> copy;
  for (int i = 0; i < n; ++i) {
    copy.lane[i] = a.shadow_is_float16 ? to_float16(value.lane[i]) : to_bfloat16(value.lane[i]);
  }
  block.array(a.shadow, a.count).template put<n>(begin, copy);
}

// The kernel. Any number of blocks: elements are independent. Shared memory: AdamFactors.
template <class Block>
DTRAIN_DEVICE void update_adam(Block& block, const AdamArguments& a) {
  AdamFactors& factors = block.shared();
  block.each([&](int thread) {
    if (thread == 0) factors = adam_factors(block, a);
  });
  block.each([&](int thread) {
    const AdamFactors f = factors;
    if (f.skips) return;
    const std::int64_t first = static_cast<std::int64_t>(block.index()) * kThreads + thread;
    const std::int64_t stride = static_cast<std::int64_t>(block.blocks()) * kThreads;
    const std::int64_t packed = f.packs ? a.count - a.count % 4 : 0;
    for (std::int64_t i = 4 * first; i < packed; i += 4 * stride) adam_pack<4>(block, a, f, i);
    for (std::int64_t i = packed + first; i < a.count; i += stride) adam_pack<1>(block, a, f, i);
  });
}

}  // namespace dtrain::train::cuda
