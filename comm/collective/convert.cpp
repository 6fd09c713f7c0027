#include "collective/reduce.h"

#include <cstdint>

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collective/convert.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "collective/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtrain::comm {
namespace HWY_NAMESPACE {

template <class Narrow>
void widen(const std::uint16_t* in, float* out, std::size_t count, float scale) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> single;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Mul(load_narrow(Narrow(), d, in + i), factor), d, out + i);
  for (; i < count; ++i) {
    hn::StoreU(hn::Mul(load_narrow(Narrow(), single, in + i), hn::Set(single, scale)), single, out + i);
  }
}

template <class Narrow>
void shrink(const float* in, std::uint16_t* out, std::size_t count, float scale) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> single;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) store_narrow(Narrow(), d, hn::Mul(hn::LoadU(d, in + i), factor), out + i);
  for (; i < count; ++i) {
    store_narrow(Narrow(), single, hn::Mul(hn::LoadU(single, in + i), hn::Set(single, scale)), out + i);
  }
}

void widen_half(const std::uint16_t* in, float* out, std::size_t count, float scale) {
  widen<Half>(in, out, count, scale);
}
void widen_brain(const std::uint16_t* in, float* out, std::size_t count, float scale) {
  widen<Brain>(in, out, count, scale);
}
void shrink_half(const float* in, std::uint16_t* out, std::size_t count, float scale) {
  shrink<Half>(in, out, count, scale);
}
void shrink_brain(const float* in, std::uint16_t* out, std::size_t count, float scale) {
  shrink<Brain>(in, out, count, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::comm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::comm {

HWY_EXPORT(widen_half);
HWY_EXPORT(widen_brain);
HWY_EXPORT(shrink_half);
HWY_EXPORT(shrink_brain);

void to_float32(DataType type, const void* in, float* out, std::size_t count, float scale) {
  const auto* const from = static_cast<const std::uint16_t*>(in);
  if (type == DataType::kFloat16) {
    HWY_DYNAMIC_DISPATCH(widen_half)(from, out, count, scale);
  } else {
    HWY_DYNAMIC_DISPATCH(widen_brain)(from, out, count, scale);
  }
}

void from_float32(DataType type, const float* in, void* out, std::size_t count, float scale) {
  auto* const to = static_cast<std::uint16_t*>(out);
  if (type == DataType::kFloat16) {
    HWY_DYNAMIC_DISPATCH(shrink_half)(in, to, count, scale);
  } else {
    HWY_DYNAMIC_DISPATCH(shrink_brain)(in, to, count, scale);
  }
}

}  // namespace dtrain::comm
#endif
