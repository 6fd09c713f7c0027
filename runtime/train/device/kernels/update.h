// What kernels share that update flat parameters in one pass over memory: the arrays and numbers of an update, and the
// loop over elements. The operations of such a kernel and their order are those of the same update on a CPU, so the
// bits are the same.
#pragma once

#include "kernel.h"

namespace dtrain::train::cuda {

struct FlatArguments {
  std::int64_t count = 0;
  float* values = nullptr;
  // One of the two is set. They are only read.
  const float* gradients = nullptr;
  const std::uint16_t* narrow_gradients = nullptr;  // bfloat16
  std::uint16_t* shadow = nullptr;                  // a copy of the values in a narrower type; null: none
  bool shadow_is_float16 = false;                   // else it is bfloat16
  // Values that the GPU alone knows, one element each; null: as UpdateStep says.
  const float* number_on_device = nullptr;
  const float* rate_on_device = nullptr;
  const float* divisor = nullptr;
  const float* found_inf = nullptr;
  double number = 1;  // of this update, from 1
  double rate = 0;
};

// The numbers of an update, the same for all elements.
struct FlatNumbers {
  double number, rate;
  float divisor;
  bool divides, skips, packs;
};

template <class Block>
DTRAIN_DEVICE FlatNumbers flat_numbers(Block& block, const FlatArguments& a) {
  const auto scalar = [&](const float* on_device, double otherwise) {
    return on_device ? static_cast<double>(block.array(on_device, 1).template get<1>(0).lane[0]) : otherwise;
  };
  FlatNumbers f;
  f.number = scalar(a.number_on_device, a.number);
  f.rate = scalar(a.rate_on_device, a.rate);
  f.divisor = static_cast<float>(scalar(a.divisor, 1));
  f.divides = a.divisor != nullptr;
  f.skips = scalar(a.found_inf, 0) != 0;
  f.packs = is_aligned(a.values, 16) && is_aligned(a.gradients, 16) && is_aligned(a.narrow_gradients, 8) &&
            is_aligned(a.shadow, 8);
  return f;
}

// Returns `n` gradients from `begin` on, divided.
template <int n, class Block>
DTRAIN_DEVICE Pack<float, n> gradients_at(Block& block, const FlatArguments& a, const FlatNumbers& f,
                                          std::int64_t begin) {
  Pack<float, n> gradient;
  if (a.gradients) {
    gradient = block.array(a.gradients, a.count).template get<n>(begin);
  } else {
    const auto narrow = block.array(a.narrow_gradients, a.count).template get<n>(begin);
    for (int i = 0; i < n; ++i) gradient.lane[i] = from_bfloat16(narrow.lane[i]);
  }
  if (!f.divides) return gradient;
  for (int i = 0; i < n; ++i) gradient.lane[i] = gradient.lane[i] / f.divisor;
  return gradient;
}

// Writes `n` new values from `begin` on, and their copy.
template <int n, class Block>
DTRAIN_DEVICE void put_values(Block& block, const FlatArguments& a, std::int64_t begin, const Pack<float, n>& value) {
  block.array(a.values, a.count).template put<n>(begin, value);
  if (!a.shadow) return;
  Pack<std::uint16_t, n> copy;
  for (int i = 0; i < n; ++i) {
    copy.lane[i] = a.shadow_is_float16 ? to_float16(value.lane[i]) : to_bfloat16(value.lane[i]);
  }
  block.array(a.shadow, a.count).template put<n>(begin, copy);
}

// Returns start + weight * (end - start), rounded as by libtorch's lerp.
DTRAIN_DEVICE float lerp(float start, float end, float weight) {
  const float step = end - start;
  return fabsf(weight) < 0.5f ? fmaf(weight, step, start) : fmaf(weight - 1, step, end);
}

// A number that is known when the kernel is compiled.
template <int n>
struct Number {
  static constexpr int value = n;
};

// Calls of_pack(Number<n>, begin) for all elements below `count`, which are divided among all threads of all blocks:
// for packs of 4 as far as possible if `packs`, and for single elements.
template <class Block, class OfPack>
DTRAIN_DEVICE void for_each_pack(Block& block, int thread, std::int64_t count, bool packs, const OfPack& of_pack) {
  const std::int64_t first = static_cast<std::int64_t>(block.index()) * kThreads + thread;
  const std::int64_t stride = static_cast<std::int64_t>(block.blocks()) * kThreads;
  const std::int64_t packed = packs ? count - count % 4 : 0;
  for (std::int64_t i = 4 * first; i < packed; i += 4 * stride) of_pack(Number<4>(), i);
  for (std::int64_t i = packed + first; i < count; i += stride) of_pack(Number<1>(), i);
}

}  // namespace dtrain::train::cuda
