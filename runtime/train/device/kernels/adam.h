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

#include "update.h"

namespace dtrain::train::cuda {

struct AdamArguments {
  FlatArguments flat;
  float* average = nullptr;  // of the gradient
  float* square = nullptr;   // average of the gradient's square
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;  // AdamW
};

// What is the same for all elements.
struct AdamFactors {
  FlatNumbers flat;
  float negative_step, new_part, square_old, square_new, correction, eps, decay;
  bool has_decay, decoupled, packs;
};

template <class Block>
DTRAIN_DEVICE AdamFactors adam_factors(Block& block, const AdamArguments& a) {
  AdamFactors f;
  f.flat = flat_numbers(block, a.flat);
  const double number = f.flat.number, rate = f.flat.rate;
  f.negative_step = static_cast<float>(-(rate / (1 - pow(a.beta1, number))));
  f.new_part = static_cast<float>(1 - a.beta1);
  f.square_old = static_cast<float>(a.beta2);
  f.square_new = static_cast<float>(1 - a.beta2);
  f.correction = static_cast<float>(sqrt(1 - pow(a.beta2, number)));
  f.eps = static_cast<float>(a.eps);
  f.decay = static_cast<float>(a.decoupled ? fma(-rate, a.weight_decay, 1.0) : a.weight_decay);
  f.has_decay = a.weight_decay != 0;
  f.decoupled = a.decoupled;
  f.packs = f.flat.packs && is_aligned(a.average, 16) && is_aligned(a.square, 16);
  return f;
}

// Updates one element. `average` and `square` are replaced.
DTRAIN_DEVICE float adam_element(const AdamFactors& f, float value, float gradient, float& average, float& square) {
  if (f.has_decay && f.decoupled) value = value * f.decay;
  if (f.has_decay && !f.decoupled) gradient = fmaf(value, f.decay, gradient);
  average = lerp(average, gradient, f.new_part);
  square = fmaf(f.square_new * gradient, gradient, square * f.square_old);
  const float divisor = sqrtf(square) / f.correction + f.eps;
  return value + f.negative_step * average / divisor;
}

// Updates the `n` elements from `begin` on.
template <int n, class Block>
DTRAIN_DEVICE void adam_pack(Block& block, const AdamArguments& a, const AdamFactors& f, std::int64_t begin) {
  const auto averages = block.array(a.average, a.flat.count);
  const auto squares = block.array(a.square, a.flat.count);
  Pack<float, n> value = block.array(a.flat.values, a.flat.count).template get<n>(begin),
                 average = averages.template get<n>(begin), square = squares.template get<n>(begin);
  const Pack<float, n> gradient = gradients_at<n>(block, a.flat, f.flat, begin);
  for (int i = 0; i < n; ++i) {
    value.lane[i] = adam_element(f, value.lane[i], gradient.lane[i], average.lane[i], square.lane[i]);
  }
  averages.template put<n>(begin, average);
  squares.template put<n>(begin, square);
  put_values<n>(block, a.flat, begin, value);
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
    if (f.flat.skips) return;
    for_each_pack(block, thread, a.flat.count, f.packs,
                  [&](auto n, std::int64_t begin) { adam_pack<n.value>(block, a, f, begin); });
  });
}

}  // namespace dtrain::train::cuda
