#include <bit>

#include "numerics/kernels.h"

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/first_maximum_kernel.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "numerics/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace dtrain::train::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE float score(const float* from) {
  return *from;
}
HWY_INLINE float score(const Bfloat16* from) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(*from) << 16);
}

// True if all of [begin, end) are less than `most`, or, with kOrEqual, less than or equal.
template <bool kOrEqual, class Score>
HWY_INLINE bool all_less(const Score* HWY_RESTRICT begin, const Score* end, float most) {
  const std::size_t lanes = hn::Lanes(Floats());
  const auto limit = hn::Set(Floats(), most);
  const auto less = [&](const Score* at) {
    const auto values = load(at);
    return kOrEqual ? hn::Le(values, limit) : hn::Lt(values, limit);
  };
  const auto left = [&] { return static_cast<std::size_t>(end - begin); };
  for (; left() >= 4 * lanes; begin += 4 * lanes) {
    const auto first = hn::And(less(begin), less(begin + lanes));
    const auto second = hn::And(less(begin + 2 * lanes), less(begin + 3 * lanes));
    if (!hn::AllTrue(Floats(), hn::And(first, second))) return false;
  }
  for (; left() >= lanes; begin += lanes) {
    if (!hn::AllTrue(Floats(), less(begin))) return false;
  }
  for (; begin < end; ++begin) {
    if (kOrEqual ? !(score(begin) <= most) : !(score(begin) < most)) return false;
  }
  return true;
}

template <class Score>
std::int64_t count(const Score* scores, const std::int64_t* targets, std::size_t rows, std::size_t classes) {
  std::int64_t right = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const Score* const first = scores + row * classes;
    const Score* const target = first + targets[row];
    const float most = score(target);
    right += all_less<false>(first, target, most) && all_less<true>(target + 1, first + classes, most);
  }
  return right;
}

std::int64_t count_wide(const float* scores, const std::int64_t* targets, std::size_t rows, std::size_t classes) {
  return count(scores, targets, rows, classes);
}
std::int64_t count_narrow(const Bfloat16* scores, const std::int64_t* targets, std::size_t rows, std::size_t classes) {
  return count(scores, targets, rows, classes);
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::train::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::train::kernels {

HWY_EXPORT(count_wide);
HWY_EXPORT(count_narrow);

std::int64_t count_first_maxima(const float* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes) {
  return HWY_DYNAMIC_DISPATCH(count_wide)(scores, targets, rows, classes);
}

std::int64_t count_first_maxima(const Bfloat16* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes) {
  return HWY_DYNAMIC_DISPATCH(count_narrow)(scores, targets, rows, classes);
}

}  // namespace dtrain::train::kernels
#endif
