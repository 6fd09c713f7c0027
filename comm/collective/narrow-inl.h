// float16 and bfloat16 as vectors of float32, for files that Highway compiles once for each instruction set; only such
// a file may include this one. Rounding is to nearest even, subnormals, infinities and NaN included, and the same on
// every target: Highway 1.0 truncates bfloat16 everywhere and float16 where the CPU has no instruction for it.
#if defined(DTRAIN_COMM_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTRAIN_COMM_NARROW_INL_H_
#undef DTRAIN_COMM_NARROW_INL_H_
#else
#define DTRAIN_COMM_NARROW_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dtrain::comm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Tags for the element type of a buffer whose vectors are float32.
struct Half {};
struct Brain {};

#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
inline constexpr bool kNativeHalf = false;
#elif HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
inline constexpr bool kNativeHalf = false;
#else
inline constexpr bool kNativeHalf = true;
#endif

template <class D>
using Bits16 = hn::Rebind<std::uint16_t, D>;

template <class D, class V = hn::VFromD<D>>
HWY_INLINE V load_narrow(Brain, D d, const std::uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(Bits16<D>(), from))));
}

template <class D, class V = hn::VFromD<D>>
HWY_INLINE void store_narrow(Brain, D, V v, std::uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  const auto result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(Bits16<D>(), hn::BitCast(di, result)), Bits16<D>(), to);
}

template <class D, class V = hn::VFromD<D>>
HWY_INLINE V load_narrow(Half, D d, const std::uint16_t* from) {
  if constexpr (kNativeHalf) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    // Exponent and mantissa move to their places in a float32, whose exponent is biased by 112 more.
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::PromoteTo(du, hn::LoadU(Bits16<D>(), from));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
    const auto exponent = hn::And(bits, hn::Set(du, 0x7C00));
    const auto shifted = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFF)));
    const auto normal = hn::Add(shifted, hn::Set(du, 112u << 23));
    const auto special = hn::Add(shifted, hn::Set(du, 224u << 23));  // infinity and NaN
    // A subnormal is its mantissa in units of 2^-24: add the mantissa behind 2^-14, then subtract 2^-14.
    const auto smallest = hn::BitCast(d, hn::Set(du, 113u << 23));
    const auto subnormal =
        hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Add(shifted, hn::Set(du, 113u << 23))), smallest));
    auto result = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x7C00)), special, normal);
    result = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), subnormal, result);
    return hn::BitCast(d, hn::Or(result, sign));
  }
}

template <class D, class V = hn::VFromD<D>>
HWY_INLINE void store_narrow(Half, D d, V v, std::uint16_t* to) {
  if constexpr (kNativeHalf) {
    const hn::Rebind<hwy::float16_t, D> df16;
    hn::StoreU(hn::DemoteTo(df16, v), df16, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000u)));
    const auto positive = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));  // as signed numbers in the order of the floats
    const auto less = [&](auto a, std::uint32_t b) {
      return hn::RebindMask(du, hn::Lt(hn::BitCast(di, a), hn::Set(di, static_cast<std::int32_t>(b))));
    };
    const auto odd = hn::And(hn::ShiftRight<13>(positive), hn::Set(du, 1));
    const auto normal =
        hn::ShiftRight<13>(hn::Add(hn::Add(hn::Sub(positive, hn::Set(du, 112u << 23)), hn::Set(du, 0xFFF)), odd));
    // In the sum with 0.5, units of 2^-24 are the last bits, and the addition rounds to them.
    const auto half = hn::Set(du, 126u << 23);
    const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, positive), hn::BitCast(d, half))), half);
    const auto infinity = hn::Set(du, 0x7C00);
    auto result = hn::IfThenElse(less(positive, 113u << 23), subnormal, normal);
    result = hn::IfThenElse(less(positive, 143u << 23), result, infinity);
    result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7E00), result);
    hn::StoreU(hn::DemoteTo(Bits16<D>(), hn::BitCast(di, hn::Or(result, sign))), Bits16<D>(), to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::comm
HWY_AFTER_NAMESPACE();

#endif
