// Loads vectors of floats from float32 and bfloat16 arrays, and stores them. Included once for each instruction set for
// which Highway compiles a file, after <hwy/highway.h>; so it has no ordinary include guard.
#include <cstddef>
#include <cstdint>

#include "numerics/kernels.h"

#if defined(DTRAIN_TRAIN_KERNELS_VECTORS_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTRAIN_TRAIN_KERNELS_VECTORS_
#undef DTRAIN_TRAIN_KERNELS_VECTORS_
#else
#define DTRAIN_TRAIN_KERNELS_VECTORS_
#endif

HWY_BEFORE_NAMESPACE();
namespace dtrain::train::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;

HWY_INLINE V load(const float* from) {
  return hn::LoadU(Floats(), from);
}
HWY_INLINE V load(const Bfloat16* from) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halves(), from))));
}

HWY_INLINE void store(V value, float* to) {
  hn::StoreU(value, Floats(), to);
}
// Stores values rounded to nearest even.
HWY_INLINE void store(V value, Bfloat16* to) {
  const auto bits = hn::BitCast(Words(), value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(Words(), 0x7FFF)), odd));
  const auto result = hn::IfThenElse(hn::RebindMask(Words(), hn::IsNaN(value)), hn::Set(Words(), 0x7FC0), rounded);
  hn::StoreU(hn::DemoteTo(Halves(), hn::BitCast(hn::RebindToSigned<Floats>(), result)), Halves(), to);
}

// Loads `count` values, fewer than a vector has lanes; the other lanes become `otherwise`.
template <class Value>
HWY_INLINE V load_some(const Value* from, std::size_t count, float otherwise) {
  Value padded[hn::MaxLanes(Floats())] = {};
  for (std::size_t i = 0; i < count; ++i) padded[i] = from[i];
  return hn::IfThenElse(hn::FirstN(Floats(), count), load(padded), hn::Set(Floats(), otherwise));
}
template <class Value>
HWY_INLINE void store_some(V value, std::size_t count, Value* to) {
  Value padded[hn::MaxLanes(Floats())];
  store(value, padded);
  for (std::size_t i = 0; i < count; ++i) to[i] = padded[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::train::kernels
HWY_AFTER_NAMESPACE();
#endif
