#include "collective/reduce.h"

#include <cstdint>
#include <type_traits>

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collective/reduce.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "collective/narrow-inl.h"

#ifndef DTRAIN_COMM_REDUCE_ARGUMENTS_
#define DTRAIN_COMM_REDUCE_ARGUMENTS_
namespace dtrain::comm {
namespace {

// The arguments of the kernels, the same for every instruction set.
struct Arguments {
  const std::byte* const* in;
  std::size_t inputs;
  std::byte* const* out;
  std::size_t outputs;
  std::size_t count;
  double pre;
  double post;
  double divisor;
};

bool in_place_pair(const Arguments& a) {
  return a.inputs == 2 && a.outputs == 2 && a.in[0] == a.out[0] && a.in[1] == a.out[1];
}

// Returns the operation on bytes that gives kBool's result.
ReduceOp byte_operation(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceOp::kMax;
    case ReduceOp::kProduct:
      return ReduceOp::kMin;
    default:
      return op;
  }
}

}  // namespace
}  // namespace dtrain::comm
#endif

HWY_BEFORE_NAMESPACE();
namespace dtrain::comm {
namespace HWY_NAMESPACE {

// Loads and stores elements of a buffer as vectors. Lane: the type of the reduction; Stored: the type in memory.
template <class T>
struct Wide {
  using Lane = T;
  using Stored = T;
  template <class D>
  static HWY_INLINE hn::VFromD<D> load(D d, const T* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::VFromD<D> v, T* to) {
    hn::StoreU(v, d, to);
  }
};
template <class Format>
struct Narrow {
  using Lane = float;
  using Stored = std::uint16_t;
  template <class D>
  static HWY_INLINE hn::VFromD<D> load(D d, const Stored* from) {
    return load_narrow(Format(), d, from);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::VFromD<D> v, Stored* to) {
    store_narrow(Format(), d, v, to);
  }
};

struct Sum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Add(a, b);
  }
};
// The result of a CPU depends on which operand is NaN. This function returns the same NaN for either, on every CPU.
template <class V>
HWY_INLINE V unless_nan(V a, V b, V chosen) {
  if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
    return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::IsNaN(b)), hn::NaN(hn::DFromV<V>()), chosen);
  } else {
    return chosen;
  }
}
struct Min {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return unless_nan(a, b, hn::Min(a, b));
  }
};
struct Max {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return unless_nan(a, b, hn::Max(a, b));
  }
};
struct Product {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Mul(a, b);
  }
};

struct BitAnd {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::And(a, b);
  }
};
struct BitOr {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Or(a, b);
  }
};
struct BitXor {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Xor(a, b);
  }
};

enum class Scaling { kNone, kMultiply, kDivide };

template <class E, Scaling kScaling, class D>
HWY_INLINE hn::VFromD<D> fetch(D d, const Arguments& a, std::size_t input, std::size_t i) {
  auto v = E::load(d, reinterpret_cast<const typename E::Stored*>(a.in[input]) + i);
  if constexpr (kScaling != Scaling::kNone) v = hn::Mul(v, hn::Set(d, static_cast<typename E::Lane>(a.pre)));
  return v;
}

template <class E, Scaling kScaling, class D>
HWY_INLINE hn::VFromD<D> finish(D d, const Arguments& a, hn::VFromD<D> v) {
  using T = typename E::Lane;
  if constexpr (kScaling == Scaling::kDivide) v = hn::Div(v, hn::Set(d, static_cast<T>(a.divisor)));
  if constexpr (kScaling != Scaling::kNone) v = hn::Mul(v, hn::Set(d, static_cast<T>(a.post)));
  return v;
}

// Reduces one vector (or, with a tag of one lane, one element) at element i.
template <class E, class Op, Scaling kScaling, class D>
HWY_INLINE void one(D d, const Arguments& a, std::size_t i) {
  auto result = fetch<E, kScaling>(d, a, 0, i);
  for (std::size_t r = 1; r < a.inputs; ++r) result = Op::apply(result, fetch<E, kScaling>(d, a, r, i));
  result = finish<E, kScaling>(d, a, result);
  for (std::size_t r = 0; r < a.outputs; ++r) E::store(d, result, reinterpret_cast<typename E::Stored*>(a.out[r]) + i);
}

// Reduces two ranks in place, the common case: the loop has only two loads and two stores.
template <class E, class Op, Scaling kScaling, class D>
HWY_INLINE std::size_t two(D d, const Arguments& a) {
  auto* HWY_RESTRICT x = reinterpret_cast<typename E::Stored*>(a.out[0]);
  auto* HWY_RESTRICT y = reinterpret_cast<typename E::Stored*>(a.out[1]);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= a.count; i += 2 * lanes) {
    auto first = Op::apply(fetch<E, kScaling>(d, a, 0, i), fetch<E, kScaling>(d, a, 1, i));
    auto second = Op::apply(fetch<E, kScaling>(d, a, 0, i + lanes), fetch<E, kScaling>(d, a, 1, i + lanes));
    first = finish<E, kScaling>(d, a, first);
    second = finish<E, kScaling>(d, a, second);
    E::store(d, first, x + i);
    E::store(d, second, x + i + lanes);
    E::store(d, first, y + i);
    E::store(d, second, y + i + lanes);
  }
  return i;
}

template <class E, class Op, Scaling kScaling>
void run(const Arguments& a) {
  const hn::ScalableTag<typename E::Lane> d;
  const hn::CappedTag<typename E::Lane, 1> single;
  std::size_t i = in_place_pair(a) ? two<E, Op, kScaling>(d, a) : 0;
  for (; i + hn::Lanes(d) <= a.count; i += hn::Lanes(d)) one<E, Op, kScaling>(d, a, i);
  for (; i < a.count; ++i) one<E, Op, kScaling>(single, a, i);
}

// Not every instruction set can multiply vectors of integers, so the compiler vectorises this loop where it can.
template <class T>
void multiply_integers(const Arguments& a) {
  using U = std::make_unsigned_t<T>;
  for (std::size_t i = 0; i < a.count; ++i) {
    U result = reinterpret_cast<const U*>(a.in[0])[i];
    for (std::size_t r = 1; r < a.inputs; ++r)
      result = static_cast<U>(1u * result * reinterpret_cast<const U*>(a.in[r])[i]);
    for (std::size_t r = 0; r < a.outputs; ++r) reinterpret_cast<U*>(a.out[r])[i] = result;
  }
}

template <class E, Scaling kScaling>
void run_op(ReduceOp op, const Arguments& a) {
  using T = typename E::Lane;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return run<E, Sum, kScaling>(a);
    case ReduceOp::kMin:
      return run<E, Min, kScaling>(a);
    case ReduceOp::kMax:
      return run<E, Max, kScaling>(a);
    case ReduceOp::kProduct:
      if constexpr (std::is_integral_v<T> && sizeof(T) != 4) {
        return multiply_integers<T>(a);
      } else {
        return run<E, Product, kScaling>(a);
      }
    case ReduceOp::kBitAnd:
      if constexpr (std::is_integral_v<T>) run<E, BitAnd, kScaling>(a);
      return;
    case ReduceOp::kBitOr:
      if constexpr (std::is_integral_v<T>) run<E, BitOr, kScaling>(a);
      return;
    case ReduceOp::kBitXor:
      if constexpr (std::is_integral_v<T>) run<E, BitXor, kScaling>(a);
      return;
  }
}

template <class E>
void run_scaled(ReduceOp op, const Arguments& a) {
  if constexpr (!std::is_integral_v<typename E::Lane>) {
    if (a.divisor != 1.0) return run<E, Sum, Scaling::kDivide>(a);
    if (a.pre != 1.0 || a.post != 1.0) return run_op<E, Scaling::kMultiply>(op, a);
  }
  run_op<E, Scaling::kNone>(op, a);
}

void reduce_raw(DataType type, ReduceOp op, const Arguments& a) {
  switch (type) {
    case DataType::kUint8:
      return run_scaled<Wide<std::uint8_t>>(op, a);
    case DataType::kInt32:
      return run_scaled<Wide<std::int32_t>>(op, a);
    case DataType::kInt64:
      return run_scaled<Wide<std::int64_t>>(op, a);
    case DataType::kFloat16:
      return run_scaled<Narrow<Half>>(op, a);
    case DataType::kBfloat16:
      return run_scaled<Narrow<Brain>>(op, a);
    case DataType::kFloat32:
      return run_scaled<Wide<float>>(op, a);
    case DataType::kFloat64:
      return run_scaled<Wide<double>>(op, a);
    case DataType::kInt8:
      return run_scaled<Wide<std::int8_t>>(op, a);
    case DataType::kInt16:
      return run_scaled<Wide<std::int16_t>>(op, a);
    case DataType::kBool:
      return run_scaled<Wide<std::uint8_t>>(byte_operation(op), a);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::comm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::comm {

HWY_EXPORT(reduce_raw);

bool is_identity(const Reduction& reduction, std::size_t inputs) {
  const bool divides = reduction.op == ReduceOp::kMean && reduction.ranks != 1;
  return inputs == 1 && !divides && reduction.pre_scale == 1.0 && reduction.post_scale == 1.0;
}

void reduce_into(const Reduction& reduction, std::span<const std::byte* const> in, std::span<std::byte* const> out,
                 std::size_t count) {
  Arguments a{in.data(), in.size(), out.data(), out.size(), count, reduction.pre_scale, reduction.post_scale, 1.0};
  if (reduction.op == ReduceOp::kMean) {
    // For a power of two, multiplying gives the same bits as dividing and is faster.
    if ((reduction.ranks & (reduction.ranks - 1)) == 0) {
      a.post /= reduction.ranks;
    } else {
      a.divisor = reduction.ranks;
    }
  }
  HWY_DYNAMIC_DISPATCH(reduce_raw)(reduction.type, reduction.op, a);
}

}  // namespace dtrain::comm
#endif
