// Muon's update of a matrix, except for the products of its Newton-Schulz iterations, which are libtorch's:
// direct_muon() divides the gradient (mean over ranks, clipping), updates the momentum and writes the direction in
// bfloat16; scale_muon() divides the direction by its norm; after the products move_muon() applies weight decay and the
// orthogonal step, and writes the copy of the values in a narrower type.
//
// Algorithm: Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024), in the form of torch.optim.Muon.
// The operations and their order are those of MuonRule (model/optimizers/muon.cpp), but for the sum in the norm, which
// is in float64. Its order depends on the size and alignment alone.
//
// Bound: an element takes 14 + 4 + 12 bytes with the copy, so memory. libtorch's operators take about 90 bytes.
#pragma once

#include "squares.h"
#include "update.h"

namespace dtrain::train::cuda {

struct MuonArguments {
  FlatArguments flat;
  float* average = nullptr;            // of the gradient; the third kernel does not take it
  std::uint16_t* direction = nullptr;  // bfloat16; for the third kernel the orthogonal step
  double* sums = nullptr;              // one for each of sum_blocks
  int sum_blocks = 0;                  // blocks_of_squares() of the matrix: the blocks of the first kernel
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double scale = 1;  // of the step
};

// What is the same for all elements.
struct MuonFactors {
  FlatNumbers flat;
  float new_part, momentum, kept, step;
  bool nesterov, packs;
};

template <class Block>
DTRAIN_DEVICE MuonFactors muon_factors(Block& block, const MuonArguments& a) {
  MuonFactors f;
  f.flat = flat_numbers(block, a.flat);
  f.new_part = static_cast<float>(1 - a.momentum);
  f.momentum = static_cast<float>(a.momentum);
  f.kept = static_cast<float>(1 - f.flat.rate * a.weight_decay);
  f.step = static_cast<float>(f.flat.rate * a.scale);
  f.nesterov = a.nesterov;
  f.packs = f.flat.packs && is_aligned(a.average, 16) && is_aligned(a.direction, 8);
  return f;
}

// Shared memory of the first two kernels.
struct MuonSums {
  MuonFactors factors;
  ThreadSums sums;
  float norm;
};

// Updates the momentum of the `n` elements from `begin` on, and writes their direction. Returns the sum of its squares.
template <int n, class Block>
DTRAIN_DEVICE double muon_direction(Block& block, const MuonArguments& a, const MuonFactors& f, std::int64_t begin) {
  const auto averages = block.array(a.average, a.flat.count);
  const Pack<float, n> gradient = gradients_at<n>(block, a.flat, f.flat, begin);
  Pack<float, n> average = averages.template get<n>(begin);
  Pack<std::uint16_t, n> direction;
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    average.lane[i] = lerp(average.lane[i], gradient.lane[i], f.new_part);
    direction.lane[i] = to_bfloat16(f.nesterov ? lerp(gradient.lane[i], average.lane[i], f.momentum) : average.lane[i]);
    const double x = from_bfloat16(direction.lane[i]);
    sum += x * x;
  }
  if (!f.flat.skips) averages.template put<n>(begin, average);
  block.array(a.direction, a.flat.count).template put<n>(begin, direction);
  return sum;
}

// The first kernel, of a.sum_blocks blocks.
template <class Block>
DTRAIN_DEVICE void direct_muon(Block& block, const MuonArguments& a) {
  MuonSums& shared = block.shared();
  block.each([&](int thread) {
    if (thread == 0) shared.factors = muon_factors(block, a);
  });
  block.each([&](int thread) {
    const MuonFactors f = shared.factors;
    double sum = 0;
    for_each_pack(block, thread, a.flat.count, f.packs,
                  [&](auto n, std::int64_t begin) { sum += muon_direction<n.value>(block, a, f, begin); });
    shared.sums.of[thread] = sum;
  });
  add_threads(block, shared.sums);
  block.each([&](int thread) {
    if (thread == 0) block.array(a.sums, a.sum_blocks).template put<1>(block.index(), {shared.sums.of[0]});
  });
}

// The second kernel: each block adds all sums. Any number of blocks.
template <class Block>
DTRAIN_DEVICE void scale_muon(Block& block, const MuonArguments& a) {
  constexpr float kLeastNorm = 1e-7f;
  MuonSums& shared = block.shared();
  block.each([&](int thread) {
    const auto all = block.array(a.sums, a.sum_blocks);
    double sum = 0;
    for (int i = thread; i < a.sum_blocks; i += kThreads) sum += all.template get<1>(i).lane[0];
    shared.sums.of[thread] = sum;
  });
  add_threads(block, shared.sums);
  block.each([&](int thread) {
    if (thread != 0) return;
    const float norm = from_bfloat16(to_bfloat16(static_cast<float>(sqrt(shared.sums.of[0]))));
    const float least = from_bfloat16(to_bfloat16(kLeastNorm));
    shared.norm = norm < least ? least : norm;
  });
  block.each([&](int thread) {
    const float norm = shared.norm;
    const auto directions = block.array(a.direction, a.flat.count);
    for_each_pack(block, thread, a.flat.count, is_aligned(a.direction, 8), [&](auto n, std::int64_t begin) {
      auto direction = directions.template get<n.value>(begin);
      for (int i = 0; i < n.value; ++i) direction.lane[i] = to_bfloat16(from_bfloat16(direction.lane[i]) / norm);
      directions.template put<n.value>(begin, direction);
    });
  });
}

// The third kernel. Any number of blocks. Shared memory: MuonFactors.
template <class Block>
DTRAIN_DEVICE void move_muon(Block& block, const MuonArguments& a) {
  MuonFactors& factors = block.shared();
  block.each([&](int thread) {
    if (thread == 0) factors = muon_factors(block, a);
  });
  block.each([&](int thread) {
    const MuonFactors f = factors;
    if (f.flat.skips) return;
    for_each_pack(block, thread, a.flat.count, f.packs, [&](auto n, std::int64_t begin) {
      auto value = block.array(a.flat.values, a.flat.count).template get<n.value>(begin);
      const auto step = block.array(a.direction, a.flat.count).template get<n.value>(begin);
      for (int i = 0; i < n.value; ++i) {
        value.lane[i] = value.lane[i] * f.kept - from_bfloat16(step.lane[i]) * f.step;
      }
      put_values<n.value>(block, a.flat, begin, value);
    });
  });
}

}  // namespace dtrain::train::cuda
