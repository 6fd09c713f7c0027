// One update of an optimizer in one pass over memory, vectorised for the CPU found at run time. The results have the
// same bits as those of libtorch's fused kernels for CPUs (torch.optim with fused=True), except for the bits of a NaN.
// Those kernels were compiled for AVX2 by a compiler that contracts products and sums; each contraction is one fused
// multiply-add here, on AVX2 and AVX-512 alike. A CPU without such an instruction rounds twice, as libtorch does there.
//
// Elements are independent, so a stretch may be updated in pieces and by several threads. But for the last `count` % 8
// elements of a call libtorch's compiler contracted other products than for its vectors of 8. So the sizes of pieces
// must be multiples of 8 for the same bits.
//
// Stateless; any thread. The arrays of a stretch do not overlap and may begin at any element.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::train::kernels {

// The bits of a bfloat16.
using Bfloat16 = std::uint16_t;

// Parameters that are adjacent in memory.
struct Stretch {
  std::size_t count = 0;
  float* values = nullptr;
  // One of the two is set. They are only read.
  const float* gradients = nullptr;
  const Bfloat16* narrow_gradients = nullptr;
  // A copy of the new values, rounded to nearest even; null: none. A NaN becomes the same bits as in libtorch: 0xFFFF
  // on AVX2 and AVX-512, else 0x7FC0.
  Bfloat16* shadow = nullptr;
  // A copy of the values before the update; null: none.
  float* old_values = nullptr;
  // Stores of the copies bypass the caches if they begin at multiples of 64 bytes: for arrays larger than the caches.
  bool stream = false;

  // Returns `elements` elements from `begin` on.
  Stretch part(std::size_t begin, std::size_t elements) const;
};

struct SgdStep {
  double rate = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the first update of these parameters: the momentum is the gradient
};
// `momentum`: as many as values; nullptr if step.momentum is 0.
void update_sgd(const SgdStep& step, const Stretch& stretch, float* momentum);

struct AdamStep {
  double rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;   // AdamW: weight decay shrinks the values, instead of being added to the gradient
  std::int64_t number = 1;  // number of this update, from 1
};
// `average` and `square`: the running averages of the gradient and of its square, as many as values.
void update_adam(const AdamStep& step, const Stretch& stretch, float* average, float* square);

}  // namespace dtrain::train::kernels
