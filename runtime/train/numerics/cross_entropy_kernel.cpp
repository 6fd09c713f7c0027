#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/kernels.h"

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/cross_entropy_kernel.cpp"
#include <hwy/foreach_target.h>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "numerics/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace dtrain::train::kernels {
namespace HWY_NAMESPACE {
// Calls see(vector, n) for all scores of a row, with n from 0 to 3 for independent sums. The lanes after the last score
// are `otherwise`.
template <class Score, class See>
HWY_INLINE void for_each(const Score* row, std::size_t classes, float otherwise, const See& see) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + 4 * lanes <= classes; i += 4 * lanes) {
    see(load(row + i), 0);
    see(load(row + i + lanes), 1);
    see(load(row + i + 2 * lanes), 2);
    see(load(row + i + 3 * lanes), 3);
  }
  for (; i + lanes <= classes; i += lanes) see(load(row + i), 0);
  if (i < classes) see(load_some(row + i, classes - i, otherwise), 1);
}

// Adds four sums. They are not a class, whose constructor would be compiled for the baseline CPU.
HWY_INLINE float total(const V (&sums)[4]) {
  return hn::GetLane(hn::SumOfLanes(Floats(), hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Score>
HWY_INLINE float maximum_of(const Score* row, std::size_t classes) {
  const V lowest = hn::Set(Floats(), -kInfinity);
  V most[4] = {lowest, lowest, lowest, lowest};
  auto none = hn::FirstN(Floats(), 0);  // lanes with a NaN, which a maximum may ignore
  for_each(row, classes, -kInfinity, [&](V value, int n) {
    none = hn::Or(none, hn::IsNaN(value));
    most[n] = hn::Max(most[n], value);
  });
  if (!hn::AllFalse(Floats(), none)) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(Floats(), hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]))));
}

template <class Score>
HWY_INLINE float value_of(const Score* from) {
  return hn::GetLane(load_some(from, 1, 0));
}

template <class Score>
HWY_INLINE RowSum sum_of(const Score* row, std::size_t classes) {
  const float maximum = maximum_of(row, classes);
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  if (!std::isfinite(maximum)) return {kNone, kNone};
  const V most = hn::Set(Floats(), maximum);
  const V zero = hn::Zero(Floats());
  V exponentials[4] = {zero, zero, zero, zero};
  for_each(row, classes, -kInfinity, [&](V value, int n) {
    exponentials[n] = hn::Add(exponentials[n], hn::Exp(Floats(), hn::Sub(value, most)));
  });
  return {maximum, std::log(total(exponentials))};
}

// Returns the mean of score - maximum.
template <class Score>
HWY_INLINE float mean_difference(const Score* row, std::size_t classes, float maximum) {
  const V most = hn::Set(Floats(), maximum);
  const V zero = hn::Zero(Floats());
  V differences[4] = {zero, zero, zero, zero};
  for_each(row, classes, maximum,
           [&](V value, int n) { differences[n] = hn::Add(differences[n], hn::Sub(value, most)); });
  return total(differences) / static_cast<float>(classes);
}

template <class Score>
HWY_INLINE void forward(const CrossEntropyRows& of, const Score* scores, float* losses, RowSum* sums) {
  for (std::size_t r = 0; r < of.rows; ++r) {
    const Score* const row = scores + r * of.classes;
    sums[r] = sum_of(row, of.classes);
    losses[r] = 0;
    if (of.targets[r] == of.ignored) continue;
    losses[r] = sums[r].log_sum - (value_of(row + of.targets[r]) - sums[r].maximum);
    if (of.smoothing == 0) continue;
    const float of_all = sums[r].log_sum - mean_difference(row, of.classes, sums[r].maximum);
    losses[r] = (1 - of.smoothing) * losses[r] + of.smoothing * of_all;
  }
}

// Writes (softmax - target) times the gradient of the row's loss. The target is smoothing / classes everywhere, and 1 -
// smoothing more at its class.
template <class Score>
HWY_INLINE void backward(const CrossEntropyRows& of, const Score* scores, const RowSum* sums, const float* of_losses,
                         Score* gradients) {
  const std::size_t lanes = hn::Lanes(Floats());
  const V everywhere = hn::Set(Floats(), of.smoothing / static_cast<float>(of.classes));
  const V at_target = hn::Set(Floats(), 1 - of.smoothing);
  for (std::size_t r = 0; r < of.rows; ++r) {
    const Score* const row = scores + r * of.classes;
    Score* const to = gradients + r * of.classes;
    if (of.targets[r] == of.ignored) {
      std::fill_n(to, of.classes, Score{0});
      continue;
    }
    const V maximum = hn::Set(Floats(), sums[r].maximum), log_sum = hn::Set(Floats(), sums[r].log_sum);
    // The exponential of NaN is 0 here, so the factor brings the NaN into the result.
    const V factor = hn::Set(Floats(), std::isnan(sums[r].maximum) ? sums[r].maximum : of_losses[r]);
    const auto beyond = [&](V score) {
      return hn::Sub(hn::Exp(Floats(), hn::Sub(hn::Sub(score, maximum), log_sum)), everywhere);
    };
    const V target = beyond(load_some(row + of.targets[r], 1, 0));  // read first: `to` may be `row`
    std::size_t i = 0;
    for (; i + lanes <= of.classes; i += lanes) store(hn::Mul(beyond(load(row + i)), factor), to + i);
    if (i < of.classes) {
      const std::size_t left = of.classes - i;
      store_some(hn::Mul(beyond(load_some(row + i, left, 0)), factor), left, to + i);
    }
    store_some(hn::Mul(hn::Sub(target, at_target), factor), 1, to + of.targets[r]);
  }
}

void forward_wide(const CrossEntropyRows& of, const float* scores, float* losses, RowSum* sums) {
  forward(of, scores, losses, sums);
}
void forward_narrow(const CrossEntropyRows& of, const Bfloat16* scores, float* losses, RowSum* sums) {
  forward(of, scores, losses, sums);
}
void backward_wide(const CrossEntropyRows& of, const float* scores, const RowSum* sums, const float* of_losses,
                   float* gradients) {
  backward(of, scores, sums, of_losses, gradients);
}
void backward_narrow(const CrossEntropyRows& of, const Bfloat16* scores, const RowSum* sums, const float* of_losses,
                     Bfloat16* gradients) {
  backward(of, scores, sums, of_losses, gradients);
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::train::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::train::kernels {

HWY_EXPORT(forward_wide);
HWY_EXPORT(forward_narrow);
HWY_EXPORT(backward_wide);
HWY_EXPORT(backward_narrow);

void cross_entropy(const CrossEntropyRows& of, const float* scores, float* losses, RowSum* sums) {
  HWY_DYNAMIC_DISPATCH(forward_wide)(of, scores, losses, sums);
}

void cross_entropy(const CrossEntropyRows& of, const Bfloat16* scores, float* losses, RowSum* sums) {
  HWY_DYNAMIC_DISPATCH(forward_narrow)(of, scores, losses, sums);
}

void cross_entropy_gradient(const CrossEntropyRows& of, const float* scores, const RowSum* sums, const float* of_losses,
                            float* gradients) {
  HWY_DYNAMIC_DISPATCH(backward_wide)(of, scores, sums, of_losses, gradients);
}

void cross_entropy_gradient(const CrossEntropyRows& of, const Bfloat16* scores, const RowSum* sums,
                            const float* of_losses, Bfloat16* gradients) {
  HWY_DYNAMIC_DISPATCH(backward_narrow)(of, scores, sums, of_losses, gradients);
}

}  // namespace dtrain::train::kernels
#endif
