// One update of an optimizer in one pass over memory, vectorised for the CPU found at run time. The arithmetic is that
// of libtorch's fused kernels for CPUs (torch.optim with fused=True), to the bit, NaN aside, which stays some NaN: they
// were compiled for AVX2 by a compiler that contracts products and sums, and what it contracted is done here as one
// fused multiply-add, on AVX2 and AVX-512 alike. A CPU without such an instruction rounds twice, as libtorch does
// there.
//
// Element by element, so a stretch may be updated in pieces and by several threads, but for the last `count` % 8
// elements of a call: libtorch's compiler contracted other products for them than for its vectors of 8. So pieces whose
// sizes are multiples of 8 give the same bits however a stretch is cut.
//
// Stateless; any thread. The arrays of a stretch do not overlap and may begin at any element.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::train::kernels {

// bfloat16 as its bits.
using Bfloat16 = std::uint16_t;

// Parameters that lie one after the other.
struct Stretch {
  std::size_t count = 0;
  float* values = nullptr;
  // One of the two, which are only read.
  const float* gradients = nullptr;
  const Bfloat16* narrow_gradients = nullptr;
  // Nothing, or a copy of the new values, rounded to nearest even. A NaN becomes what libtorch makes of it: 0xFFFF on
  // AVX2 and AVX-512, else 0x7FC0.
  Bfloat16* shadow = nullptr;
  // Nothing, or a copy of the values before the update.
  float* old_values = nullptr;
  // The two copies go past the caches where they begin at multiples of 64 bytes: for more than the caches hold.
  bool stream = false;

  // The elements from `begin` on.
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
// `momentum`: as many as values; nullptr where step.momentum is 0.
void update_sgd(const SgdStep& step, const Stretch& stretch, float* momentum);

struct AdamStep {
  double rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;   // AdamW: weight decay shrinks the values, instead of being added to the gradient
  std::int64_t number = 1;  // of this update, from 1
};
// `average` and `square`: the running averages of the gradient and of its square, as many as values.
void update_adam(const AdamStep& step, const Stretch& stretch, float* average, float* square);

}  // namespace dtrain::train::kernels
