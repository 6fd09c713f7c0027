#include "numerics/kernels.h"

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/gelu_kernel.cpp"
#include <hwy/foreach_target.h>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "numerics/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace dtrain::train::kernels {
namespace HWY_NAMESPACE {

// 2 sqrt(2 / pi), and that times 0.044715.
constexpr float kOuter = 1.5957691216057308F;
constexpr float kInner = 0.07135481282556485F;

HWY_INLINE V set(float value) {
  return hn::Set(Floats(), value);
}

// Returns the sigmoid by which x is multiplied. NaN stays NaN, although its exponential would be 0. The power is
// limited to the range of the exponential in float32; at the limit the sigmoid is almost 0.
HWY_INLINE V share(V x) {
  constexpr float kLastPower = 88;
  const V inner = hn::MulAdd(hn::Mul(x, x), set(kInner), set(kOuter));
  const V power = hn::Exp(Floats(), hn::Min(hn::Neg(hn::Mul(x, inner)), set(kLastPower)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(set(1), hn::Add(set(1), power)));
}

// Clamps x to +-100: beyond them share() is the same, and products with x would overflow float32. Non-finite values
// stay.
HWY_INLINE V near(V x) {
  constexpr float kFar = 100;
  return hn::IfThenElse(hn::IsFinite(x), hn::Max(hn::Min(x, set(kFar)), set(-kFar)), x);
}

HWY_INLINE V value(V x) {
  return hn::IfThenElse(hn::Gt(x, set(0)), hn::Mul(x, share(x)), hn::Mul(near(x), share(x)));
}

HWY_INLINE V slope(V given) {
  const V x = near(given);
  const V s = share(x);
  const V inner = hn::MulAdd(hn::Mul(x, x), set(3 * kInner), set(kOuter));
  return hn::MulAdd(hn::Mul(hn::Mul(x, inner), s), hn::Sub(set(1), s), s);
}

template <class Value>
HWY_INLINE void forward(const Value* from, std::size_t count, Value* to) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) store(value(load(from + i)), to + i);
  if (i < count) store_some(value(load_some(from + i, count - i, 0)), count - i, to + i);
}

template <class Value>
HWY_INLINE void backward(const Value* from, const Value* of_result, std::size_t count, Value* to) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) store(hn::Mul(slope(load(from + i)), load(of_result + i)), to + i);
  if (i < count) {
    const std::size_t left = count - i;
    store_some(hn::Mul(slope(load_some(from + i, left, 0)), load_some(of_result + i, left, 0)), left, to + i);
  }
}

void gelu_wide(const float* from, std::size_t count, float* to) {
  forward(from, count, to);
}
void gelu_narrow(const Bfloat16* from, std::size_t count, Bfloat16* to) {
  forward(from, count, to);
}
void gelu_gradient_wide(const float* from, const float* of_result, std::size_t count, float* to) {
  backward(from, of_result, count, to);
}
void gelu_gradient_narrow(const Bfloat16* from, const Bfloat16* of_result, std::size_t count, Bfloat16* to) {
  backward(from, of_result, count, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::train::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::train::kernels {

HWY_EXPORT(gelu_wide);
HWY_EXPORT(gelu_narrow);
HWY_EXPORT(gelu_gradient_wide);
HWY_EXPORT(gelu_gradient_narrow);

void gelu(const float* from, std::size_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(gelu_wide)(from, count, to);
}
void gelu(const Bfloat16* from, std::size_t count, Bfloat16* to) {
  HWY_DYNAMIC_DISPATCH(gelu_narrow)(from, count, to);
}
void gelu_gradient(const float* from, const float* of_result, std::size_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(gelu_gradient_wide)(from, of_result, count, to);
}
void gelu_gradient(const Bfloat16* from, const Bfloat16* of_result, std::size_t count, Bfloat16* to) {
  HWY_DYNAMIC_DISPATCH(gelu_gradient_narrow)(from, of_result, count, to);
}

}  // namespace dtrain::train::kernels
#endif
