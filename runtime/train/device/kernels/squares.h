// The sum of the squares of gradients, whose root is their norm, in two kernels: each block sums its share of the
// elements, then one block adds the sums of all blocks. Both add in an order that depends on the sizes alone: a thread
// adds the elements that it comes by, and the threads of a block add up as a tree. So the same gradients give the same
// bits on every GPU.
//
// Source: Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA 2007), reduction with sequential addressing; the norm
// is that of Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (arXiv:1211.5063).
//
// Four squares at a time are added in float32, everything else in float64: the relative error is below 4e-7, and
// gradients from 1e19 on are infinite, as in libtorch's norm.
//
// Bound: 4 bytes and 2 operations an element, so memory: 124 million gradients take at least 0.5 GB / 3.35 TB/s =
// 0.15 ms on an H100. One conversion and one addition in float64 for each 16 bytes is a quarter of what consumer cards,
// which have few units for float64, can do while they read 16 bytes.
#pragma once

#include "kernel.h"

namespace dtrain::train::cuda {

struct SquaresArguments {
  static constexpr int kMost = 32;
  int stretches = 0;
  const float* data[kMost] = {};
  std::int64_t counts[kMost] = {};
  double* sums = nullptr;  // one for each block
};

struct AddArguments {
  const double* sums = nullptr;
  std::int64_t count = 0;
  double* result = nullptr;  // one element
};

// Shared memory of both kernels.
struct ThreadSums {
  double of[kThreads];
};

// Adds the sums of a block's threads; the result is that of thread 0.
template <class Block>
DTRAIN_DEVICE void add_threads(Block& block, ThreadSums& sums) {
  for (int half = kThreads / 2; half > 0; half /= 2) {
    block.each([&](int thread) {
      if (thread < half) sums.of[thread] += sums.of[thread + half];
    });
  }
}

// The first kernel. The number of blocks must depend on the counts alone (blocks_of_squares()).
template <class Block>
DTRAIN_DEVICE void sum_squares(Block& block, const SquaresArguments& a) {
  ThreadSums& sums = block.shared();
  block.each([&](int thread) {
    const std::int64_t first = static_cast<std::int64_t>(block.index()) * kThreads + thread;
    const std::int64_t stride = static_cast<std::int64_t>(block.blocks()) * kThreads;
    double sum = 0;
    for (int s = 0; s < a.stretches; ++s) {
      const std::int64_t count = a.counts[s];
      const auto data = block.array(a.data[s], count);
      const std::int64_t packed = is_aligned(a.data[s], 16) ? count - count % 4 : 0;
      for (std::int64_t i = 4 * first; i < packed; i += 4 * stride) {
        const Pack<float, 4> x = data.template get<4>(i);
        const float low = x.lane[0] * x.lane[0] + x.lane[1] * x.lane[1];
        sum += low + (x.lane[2] * x.lane[2] + x.lane[3] * x.lane[3]);
      }
      for (std::int64_t i = packed + first; i < count; i += stride) {
        const float x = data.template get<1>(i).lane[0];
        sum += x * x;
      }
    }
    sums.of[thread] = sum;
  });
  add_threads(block, sums);
  block.each([&](int thread) {
    if (thread == 0) block.array(a.sums, block.blocks()).template put<1>(block.index(), {sums.of[0]});
  });
}

// The second kernel, of one block.
template <class Block>
DTRAIN_DEVICE void add_sums(Block& block, const AddArguments& a) {
  ThreadSums& sums = block.shared();
  block.each([&](int thread) {
    const auto all = block.array(a.sums, a.count);
    double sum = 0;
    for (std::int64_t i = thread; i < a.count; i += kThreads) sum += all.template get<1>(i).lane[0];
    sums.of[thread] = sum;
  });
  add_threads(block, sums);
  block.each([&](int thread) {
    if (thread == 0) block.array(a.result, 1).template put<1>(0, {sums.of[0]});
  });
}

// Returns the number of blocks of sum_squares() for so many elements: enough for every GPU to read memory at its full
// rate.
inline int blocks_of_squares(std::int64_t elements) {
  constexpr std::int64_t kElementsOfBlock = 16 * kThreads, kMost = 1024;
  const std::int64_t blocks = (elements + kElementsOfBlock - 1) / kElementsOfBlock;
  return static_cast<int>(blocks < 1 ? 1 : blocks < kMost ? blocks : kMost);
}

}  // namespace dtrain::train::cuda
