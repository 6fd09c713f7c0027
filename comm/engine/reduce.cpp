#include "engine/reduce.h"

#include <cstdint>

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/reduce.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dtrain::comm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Add(a, b);
  }
};
struct Min {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Min(a, b);
  }
};
struct Max {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Max(a, b);
  }
};

struct Pointers {
  const std::byte* const* in;
  std::size_t inputs;
  std::byte* const* out;
  std::size_t outputs;
};

// One vector (or, with a tag of one lane, one element) at element i.
template <class Op, bool kScale, class D, class T = hn::TFromD<D>>
HWY_INLINE void one(D d, const Pointers& p, std::size_t i, T scale) {
  auto sum = hn::LoadU(d, reinterpret_cast<const T*>(p.in[0]) + i);
  for (std::size_t r = 1; r < p.inputs; ++r) {
    sum = Op::apply(sum, hn::LoadU(d, reinterpret_cast<const T*>(p.in[r]) + i));
  }
  if constexpr (kScale) sum = hn::Mul(sum, hn::Set(d, scale));
  for (std::size_t r = 0; r < p.outputs; ++r) hn::StoreU(sum, d, reinterpret_cast<T*>(p.out[r]) + i);
}

// Two ranks in place, the common case: nothing but two loads and two stores in the loop.
template <class Op, bool kScale, class D, class T = hn::TFromD<D>>
HWY_INLINE std::size_t two(D d, const Pointers& p, std::size_t count, T scale) {
  T* HWY_RESTRICT a = reinterpret_cast<T*>(p.out[0]);
  T* HWY_RESTRICT b = reinterpret_cast<T*>(p.out[1]);
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    auto first = Op::apply(hn::LoadU(d, a + i), hn::LoadU(d, b + i));
    auto second = Op::apply(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes));
    if constexpr (kScale) {
      first = hn::Mul(first, factor);
      second = hn::Mul(second, factor);
    }
    hn::StoreU(first, d, a + i);
    hn::StoreU(second, d, a + i + lanes);
    hn::StoreU(first, d, b + i);
    hn::StoreU(second, d, b + i + lanes);
  }
  return i;
}

template <class Op, bool kScale, class T>
void run(const Pointers& p, std::size_t count, double scale) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> single;
  const T factor = static_cast<T>(scale);
  std::size_t i = 0;
  if (p.inputs == 2 && p.outputs == 2 && p.in[0] == p.out[0] && p.in[1] == p.out[1]) {
    i = two<Op, kScale>(d, p, count, factor);
  }
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) one<Op, kScale>(d, p, i, factor);
  for (; i < count; ++i) one<Op, kScale>(single, p, i, factor);
}

template <class T>
void run_op(ReduceOp op, const Pointers& p, std::size_t count, double scale) {
  constexpr bool kFloating = hwy::IsFloat<T>();
  if constexpr (kFloating) {
    if (scale != 1.0) {
      switch (op) {
        case ReduceOp::kSum:
          return run<Sum, true, T>(p, count, scale);
        case ReduceOp::kMin:
          return run<Min, true, T>(p, count, scale);
        case ReduceOp::kMax:
          return run<Max, true, T>(p, count, scale);
      }
    }
  }
  switch (op) {
    case ReduceOp::kSum:
      return run<Sum, false, T>(p, count, 1.0);
    case ReduceOp::kMin:
      return run<Min, false, T>(p, count, 1.0);
    case ReduceOp::kMax:
      return run<Max, false, T>(p, count, 1.0);
  }
}

void reduce(DataType type, ReduceOp op, const Pointers& p, std::size_t count, double scale) {
  switch (type) {
    case DataType::kUint8:
      return run_op<std::uint8_t>(op, p, count, scale);
    case DataType::kInt32:
      return run_op<std::int32_t>(op, p, count, scale);
    case DataType::kInt64:
      return run_op<std::int64_t>(op, p, count, scale);
    case DataType::kFloat32:
      return run_op<float>(op, p, count, scale);
    case DataType::kFloat64:
      return run_op<double>(op, p, count, scale);
  }
}

void reduce_raw(DataType type, ReduceOp op, const std::byte* const* in, std::size_t inputs, std::byte* const* out,
                std::size_t outputs, std::size_t count, double scale) {
  reduce(type, op, Pointers{in, inputs, out, outputs}, count, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::comm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::comm {

HWY_EXPORT(reduce_raw);

void reduce_into(DataType type, ReduceOp op, std::span<const std::byte* const> in, std::span<std::byte* const> out,
                 std::size_t count, double scale) {
  HWY_DYNAMIC_DISPATCH(reduce_raw)(type, op, in.data(), in.size(), out.data(), out.size(), count, scale);
}

}  // namespace dtrain::comm
#endif
