#include "compression/kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>

// Highway compiles this file once for each instruction set and picks one at run time. CMake keeps the compiler from
// contracting a product and a sum into one operation.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "collective/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtrain::comm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls `step` with a tag and an index, first for whole vectors, then for single elements.
template <class Step>
HWY_INLINE void for_each(std::size_t count, const Step& step) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) step(d, i);
  for (; i < count; ++i) step(one, i);
}

// Cuts finite values to +-limit and counts those that it cuts.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V cut_to(D d, V value, float limit, std::size_t& cut) {
  const V size = hn::Abs(value);
  const auto beyond = hn::And(hn::Gt(size, hn::Set(d, limit)), hn::Lt(size, hn::Inf(d)));
  if (HWY_LIKELY(hn::AllFalse(d, beyond))) return value;
  cut += hn::CountTrue(d, beyond);
  return hn::IfThenElse(beyond, hn::CopySign(hn::Set(d, limit), value), value);
}

template <class Type>
HWY_INLINE void widen(const std::uint16_t* in, float* out, std::size_t count) {
  for_each(count, [&](auto d, std::size_t i) HWY_ATTR { hn::StoreU(load_narrow(Type{}, d, in + i), d, out + i); });
}

kernels::Narrowed narrow_float16(const float* in, float* residual, std::uint8_t* owes, std::uint16_t* out,
                                 std::size_t count, float scale, float limit) {
  kernels::Narrowed result;
  const bool owed = *owes != 0;
  bool left = false;
  for_each(count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto least_normal = hn::Set(d, 0x1p-14f);
    auto value = hn::Mul(hn::LoadU(d, in + i), hn::Set(d, scale));
    const auto alone = hn::Abs(value);
    const auto subnormal = hn::And(hn::Lt(alone, least_normal), hn::Gt(alone, hn::Zero(d)));
    const bool loses = !hn::AllFalse(d, subnormal);
    if (owed) value = hn::Add(value, hn::LoadU(d, residual + i));
    value = cut_to(d, value, limit, result.cut);
    store_narrow(Half{}, d, value, out + i);
    if (HWY_LIKELY(!loses && !owed)) return;
    result.small += hn::CountTrue(d, hn::And(subnormal, hn::Le(alone, hn::Set(d, 0x1p-25f))));
    const auto lost =
        hn::IfThenElseZero(hn::Lt(hn::Abs(value), least_normal), hn::Sub(value, load_narrow(Half{}, d, out + i)));
    hn::StoreU(lost, d, residual + i);
    left = left || !hn::AllTrue(d, hn::Eq(lost, hn::Zero(d)));
  });
  *owes = left ? 1 : 0;
  return result;
}
std::size_t narrow_bfloat16(const float* in, std::uint16_t* out, std::size_t count, float scale, float limit) {
  std::size_t cut = 0;
  for_each(count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto value = hn::Mul(hn::LoadU(d, in + i), hn::Set(d, scale));
    store_narrow(Brain{}, d, cut_to(d, value, limit, cut), out + i);
  });
  return cut;
}
void widen_float16(const std::uint16_t* in, float* out, std::size_t count) {
  widen<Half>(in, out, count);
}
void widen_bfloat16(const std::uint16_t* in, float* out, std::size_t count) {
  widen<Brain>(in, out, count);
}

void add_scaled(const float* in, float* residual, std::size_t count, float scale) {
  for_each(count, [&](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, residual + i), hn::Mul(hn::LoadU(d, in + i), hn::Set(d, scale))), d, residual + i);
  });
}

void encode_int8(const float* in, float* residual, std::size_t count, float unit, std::int8_t* codes, float* scales) {
  add_scaled(in, residual, count, unit);
  // The bits of absolute values have the same order as the values, with NaN above infinity.
  std::int32_t top = 0;
  {
    const hn::ScalableTag<std::int32_t> di;
    const auto* bits = reinterpret_cast<const std::int32_t*>(residual);
    const auto no_sign = hn::Set(di, 0x7fffffff);
    auto most = hn::Zero(di);
    std::size_t i = 0;
    for (; i + hn::Lanes(di) <= count; i += hn::Lanes(di))
      most = hn::Max(most, hn::And(hn::LoadU(di, bits + i), no_sign));
    top = hn::GetLane(hn::MaxOfLanes(di, most));
    for (; i < count; ++i) {
      std::int32_t here;
      std::memcpy(&here, residual + i, sizeof here);
      top = std::max(top, here & 0x7fffffff);
    }
  }
  float largest;
  std::memcpy(&largest, &top, sizeof largest);
  if (top >= 0x7f800000) {
    *scales = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(codes, count, std::int8_t{0});
    std::fill_n(residual, count, 0.0f);
    return;
  }
  if (largest < 1e-30f) {  // its reciprocal would overflow; the block stays in the residual
    *scales = 0;
    std::fill_n(codes, count, std::int8_t{0});
    return;
  }
  const float scale = largest / 127.0f;
  const float inverse = 127.0f / largest;
  *scales = scale;
  for_each(count, [&](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::int8_t, decltype(d)> d8;
    const auto value = hn::LoadU(d, residual + i);
    const auto code = hn::NearestInt(hn::Mul(value, hn::Set(d, inverse)));
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
    hn::StoreU(hn::Sub(value, hn::Mul(hn::ConvertTo(d, code), hn::Set(d, scale))), d, residual + i);
    static_cast<void>(di);
  });
}

void decode_int8(const std::int8_t* const* codes, const float* const* scales, std::size_t inputs, std::size_t count,
                 float factor, float* out) {
  for (std::size_t begin = 0, block = 0; begin < count; begin += kernels::kBlock, ++block) {
    for_each(std::min(kernels::kBlock, count - begin), [&](auto d, std::size_t i) HWY_ATTR {
      const hn::RebindToSigned<decltype(d)> di;
      const hn::Rebind<std::int8_t, decltype(d)> d8;
      auto sum = hn::Zero(d);
      for (std::size_t r = 0; r < inputs; ++r) {
        const auto code = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes[r] + begin + i)));
        sum = hn::Add(sum, hn::Mul(code, hn::Set(d, scales[r][block])));
      }
      hn::StoreU(hn::Mul(sum, hn::Set(d, factor)), d, out + begin + i);
    });
  }
}

// Computes the products of one row with up to four vectors.
template <std::size_t kVectors>
HWY_INLINE void dots(const float* row, std::size_t columns, const float* q, std::size_t stride, float* results) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  std::size_t i = 0;
  for (; i + lanes <= columns; i += lanes) {
    const auto value = hn::LoadU(d, row + i);
    a0 = hn::MulAdd(value, hn::LoadU(d, q + i), a0);
    if constexpr (kVectors > 1) a1 = hn::MulAdd(value, hn::LoadU(d, q + stride + i), a1);
    if constexpr (kVectors > 2) a2 = hn::MulAdd(value, hn::LoadU(d, q + 2 * stride + i), a2);
    if constexpr (kVectors > 3) a3 = hn::MulAdd(value, hn::LoadU(d, q + 3 * stride + i), a3);
  }
  float sums[4] = {hn::GetLane(hn::SumOfLanes(d, a0)), hn::GetLane(hn::SumOfLanes(d, a1)),
                   hn::GetLane(hn::SumOfLanes(d, a2)), hn::GetLane(hn::SumOfLanes(d, a3))};
  for (std::size_t v = 0; v < kVectors; ++v) {
    for (std::size_t k = i; k < columns; ++k) sums[v] += row[k] * q[v * stride + k];
    results[v] = sums[v];
  }
}

void project(const float* in, float* residual, std::size_t rows, std::size_t columns, float unit, const float* q,
             std::size_t rank, float* p) {
  for (std::size_t row = 0; row < rows; ++row) {
    float* const r = residual + row * columns;
    add_scaled(in + row * columns, r, columns, unit);
    float results[4];
    for (std::size_t v = 0; v < rank; v += 4) {
      const std::size_t now = std::min<std::size_t>(4, rank - v);
      const float* const vectors = q + v * columns;
      if (now == 4) dots<4>(r, columns, vectors, columns, results);
      if (now == 3) dots<3>(r, columns, vectors, columns, results);
      if (now == 2) dots<2>(r, columns, vectors, columns, results);
      if (now == 1) dots<1>(r, columns, vectors, columns, results);
      for (std::size_t k = 0; k < now; ++k) p[(v + k) * rows + row] = results[k];
    }
  }
}

void project_back(const float* residual, std::size_t rows, std::size_t columns, const float* p, std::size_t rank,
                  float* q) {
  std::fill_n(q, rank * columns, 0.0f);
  // Four rows are taken at a time, so q is read and written once for them. Rows are cut into slices that, with their
  // part of q, stay in the L1 cache.
  constexpr std::size_t kSlice = 1024;
  for (std::size_t begin = 0; begin < columns; begin += kSlice) {
    const std::size_t width = std::min(kSlice, columns - begin);
    for (std::size_t row = 0; row < rows; row += 4) {
      const std::size_t now = std::min<std::size_t>(4, rows - row);
      const float* m[4];
      for (std::size_t k = 0; k < 4; ++k) m[k] = residual + (row + std::min(k, now - 1)) * columns + begin;
      for (std::size_t v = 0; v < rank; ++v) {
        float f[4] = {0, 0, 0, 0};
        for (std::size_t k = 0; k < now; ++k) f[k] = p[v * rows + row + k];
        float* const target = q + v * columns + begin;
        if (now == 4) {
          for_each(width, [&](auto d, std::size_t i) HWY_ATTR {
            auto sum = hn::MulAdd(hn::LoadU(d, m[0] + i), hn::Set(d, f[0]), hn::LoadU(d, target + i));
            sum = hn::MulAdd(hn::LoadU(d, m[1] + i), hn::Set(d, f[1]), sum);
            sum = hn::MulAdd(hn::LoadU(d, m[2] + i), hn::Set(d, f[2]), sum);
            sum = hn::MulAdd(hn::LoadU(d, m[3] + i), hn::Set(d, f[3]), sum);
            hn::StoreU(sum, d, target + i);
          });
        } else {
          for (std::size_t k = 0; k < now; ++k) {
            for_each(width, [&](auto d, std::size_t i) HWY_ATTR {
              hn::StoreU(hn::MulAdd(hn::LoadU(d, m[k] + i), hn::Set(d, f[k]), hn::LoadU(d, target + i)), d, target + i);
            });
          }
        }
      }
    }
  }
}

void reconstruct(float* residual, float* out, std::size_t rows, std::size_t columns, const float* p, const float* q,
                 std::size_t rank) {
  for (std::size_t row = 0; row < rows; ++row) {
    float* const r = residual + row * columns;
    float* const o = out + row * columns;
    for_each(columns, [&](auto d, std::size_t i) HWY_ATTR {
      auto sum = hn::Mul(hn::Set(d, p[row]), hn::LoadU(d, q + i));
      for (std::size_t v = 1; v < rank; ++v) {
        sum = hn::Add(sum, hn::Mul(hn::Set(d, p[v * rows + row]), hn::LoadU(d, q + v * columns + i)));
      }
      hn::StoreU(sum, d, o + i);
      hn::StoreU(hn::Sub(hn::LoadU(d, r + i), sum), d, r + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::comm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::comm {

HWY_EXPORT(narrow_float16);
HWY_EXPORT(narrow_bfloat16);
HWY_EXPORT(widen_float16);
HWY_EXPORT(widen_bfloat16);
HWY_EXPORT(add_scaled);
HWY_EXPORT(encode_int8);
HWY_EXPORT(decode_int8);
HWY_EXPORT(project);
HWY_EXPORT(project_back);
HWY_EXPORT(reconstruct);

namespace kernels {

Narrowed narrow_float16(const float* in, float* residual, std::uint8_t* owes, std::uint16_t* out, std::size_t count,
                        float scale, float limit) {
  const auto narrow = HWY_DYNAMIC_DISPATCH(narrow_float16);
  Narrowed result;
  for (std::size_t begin = 0; begin < count; begin += kBlock, ++owes) {
    const std::size_t now = std::min(kBlock, count - begin);
    const Narrowed here = narrow(in + begin, residual + begin, owes, out + begin, now, scale, limit);
    result.cut += here.cut;
    result.small += here.small;
  }
  return result;
}
std::size_t narrow_bfloat16(const float* in, std::uint16_t* out, std::size_t count, float scale, float limit) {
  return HWY_DYNAMIC_DISPATCH(narrow_bfloat16)(in, out, count, scale, limit);
}
void widen_float16(const std::uint16_t* in, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_float16)(in, out, count);
}
void widen_bfloat16(const std::uint16_t* in, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_bfloat16)(in, out, count);
}
void add_scaled(const float* in, float* residual, std::size_t count, float scale) {
  HWY_DYNAMIC_DISPATCH(add_scaled)(in, residual, count, scale);
}
void encode_int8(const float* in, float* residual, std::size_t count, float unit, std::int8_t* codes, float* scales) {
  const auto encode = HWY_DYNAMIC_DISPATCH(encode_int8);
  for (std::size_t begin = 0, block = 0; begin < count; begin += kBlock, ++block) {
    encode(in + begin, residual + begin, std::min(kBlock, count - begin), unit, codes + begin, scales + block);
  }
}
void decode_int8(const std::int8_t* const* codes, const float* const* scales, std::size_t inputs, std::size_t count,
                 float factor, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_int8)(codes, scales, inputs, count, factor, out);
}
void project(const float* in, float* residual, std::size_t rows, std::size_t columns, float unit, const float* q,
             std::size_t rank, float* p) {
  HWY_DYNAMIC_DISPATCH(project)(in, residual, rows, columns, unit, q, rank, p);
}
void project_back(const float* residual, std::size_t rows, std::size_t columns, const float* p, std::size_t rank,
                  float* q) {
  HWY_DYNAMIC_DISPATCH(project_back)(residual, rows, columns, p, rank, q);
}
void reconstruct(float* residual, float* out, std::size_t rows, std::size_t columns, const float* p, const float* q,
                 std::size_t rank) {
  HWY_DYNAMIC_DISPATCH(reconstruct)(residual, out, rows, columns, p, q, rank);
}

}  // namespace kernels
}  // namespace dtrain::comm
#endif
