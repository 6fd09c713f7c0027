// SGD of flat parameters with momentum, Nesterov and weight decay, in one pass over memory: divides the gradients (mean
// over ranks, clipping), updates momentum and values, and writes the copy of the values in a narrower type.
//
// Algorithm: Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning"
// (ICML 2013), in the form of torch.optim.SGD. The operations and their order are those of dtrain's kernel for CPUs
// (numerics/update_kernel.cpp).
//
// Bound: a parameter takes 20 bytes (reads gradient, value and momentum, writes two of them), 22 with the copy, and 12
// without momentum; so memory: 25.6 million parameters with a copy take at least 0.56 GB / 3.35 TB/s = 0.17 ms on an
// H100. libtorch's fused kernel also writes the divided gradients, and the copy takes a pass of its own: 30 bytes.
#pragma once

#include "update.h"

namespace dtrain::train::cuda {

struct SgdArguments {
  FlatArguments flat;
  float* momentum = nullptr;  // null: there is none
  double factor = 0;          // of the momentum
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the first update of these parameters: the momentum is the gradient
};

// What is the same for all elements.
struct SgdFactors {
  FlatNumbers flat;
  float negative_rate, factor, new_part, decay;
  bool has_decay, nesterov, first, packs;
};

template <class Block>
DTRAIN_DEVICE SgdFactors sgd_factors(Block& block, const SgdArguments& a) {
  SgdFactors f;
  f.flat = flat_numbers(block, a.flat);
  f.negative_rate = static_cast<float>(-f.flat.rate);
  f.factor = static_cast<float>(a.factor);
  f.new_part = static_cast<float>(1 - a.dampening);
  f.decay = static_cast<float>(a.weight_decay);
  f.has_decay = a.weight_decay != 0;
  f.nesterov = a.nesterov;
  f.first = a.first;
  f.packs = f.flat.packs && is_aligned(a.momentum, 16);
  return f;
}

// Updates the `n` elements from `begin` on.
template <int n, class Block>
DTRAIN_DEVICE void sgd_pack(Block& block, const SgdArguments& a, const SgdFactors& f, std::int64_t begin) {
  Pack<float, n> value = block.array(a.flat.values, a.flat.count).template get<n>(begin);
  Pack<float, n> step = gradients_at<n>(block, a.flat, f.flat, begin);
  for (int i = 0; i < n; ++i) {
    if (f.has_decay) step.lane[i] = fmaf(value.lane[i], f.decay, step.lane[i]);
  }
  if (a.momentum) {
    const auto momenta = block.array(a.momentum, a.flat.count);
    Pack<float, n> momentum = step;
    if (!f.first) {
      const Pack<float, n> before = momenta.template get<n>(begin);
      for (int i = 0; i < n; ++i) momentum.lane[i] = fmaf(step.lane[i], f.new_part, before.lane[i] * f.factor);
    }
    momenta.template put<n>(begin, momentum);
    for (int i = 0; i < n; ++i) {
      step.lane[i] = f.nesterov ? fmaf(momentum.lane[i], f.factor, step.lane[i]) : momentum.lane[i];
    }
  }
  for (int i = 0; i < n; ++i) value.lane[i] = fmaf(step.lane[i], f.negative_rate, value.lane[i]);
  put_values<n>(block, a.flat, begin, value);
}

// The kernel. Any number of blocks: elements are independent. Shared memory: SgdFactors.
template <class Block>
DTRAIN_DEVICE void update_sgd(Block& block, const SgdArguments& a) {
  SgdFactors& factors = block.shared();
  block.each([&](int thread) {
    if (thread == 0) factors = sgd_factors(block, a);
  });
  block.each([&](int thread) {
    const SgdFactors f = factors;
    if (f.flat.skips) return;
    for_each_pack(block, thread, a.flat.count, f.packs,
                  [&](auto n, std::int64_t begin) { sgd_pack<n.value>(block, a, f, begin); });
  });
}

}  // namespace dtrain::train::cuda
