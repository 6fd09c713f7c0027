#include <cmath>

#include "numerics/kernels.h"

// Highway compiles this file once for each instruction set and picks one at run time. CMake keeps the compiler from
// contracting products and sums by itself.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/update_kernel.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#ifndef DTRAIN_TRAIN_KERNELS_UPDATE_FACTORS_
#define DTRAIN_TRAIN_KERNELS_UPDATE_FACTORS_
namespace dtrain::train::kernels {
namespace {

// The factors of an update, the same for all elements; computed in float64 as in libtorch.
struct SgdFactors {
  float negative_rate, momentum, new_part, weight_decay;
  bool has_momentum, has_decay, nesterov, first;
};
struct AdamFactors {
  float negative_step, new_part, square_old, square_new, correction, eps, decay;
  bool mostly_old, has_decay, decoupled;
};

}  // namespace
}  // namespace dtrain::train::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace dtrain::train::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Bits16 = hn::Rebind<std::uint16_t, D>;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Bfloat16* from) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(Bits16<D>(), from))));
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
inline constexpr std::uint32_t kNan = 0xFFFF;
#else
inline constexpr std::uint32_t kNan = 0x7FC0;
#endif

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow(D, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
  const auto result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), hn::Set(du, kNan), rounded);
  return hn::DemoteTo(Bits16<D>(), hn::BitCast(di, result));
}

// Of two products in a sum libtorch's compiler has fused one: the second in its vectors, the first after them (kTail).
class Sgd {
 public:
  Sgd(const SgdFactors& factors, float* momentum) : f_(factors), momentum_(momentum) {}
  template <bool kTail, class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, std::size_t i, V value, V gradient) const {
    if (f_.has_decay) gradient = hn::MulAdd(value, hn::Set(d, f_.weight_decay), gradient);
    if (f_.has_momentum) {
      const V factor = hn::Set(d, f_.momentum);
      V momentum = gradient;
      if (!f_.first) {
        const V before = hn::LoadU(d, momentum_ + i), part = hn::Set(d, f_.new_part);
        momentum = kTail ? hn::MulAdd(before, factor, hn::Mul(gradient, part))
                         : hn::MulAdd(gradient, part, hn::Mul(before, factor));
      }
      hn::StoreU(momentum, d, momentum_ + i);
      gradient = f_.nesterov ? hn::MulAdd(momentum, factor, gradient) : momentum;
    }
    return hn::MulAdd(gradient, hn::Set(d, f_.negative_rate), value);
  }

 private:
  const SgdFactors f_;
  float* const HWY_RESTRICT momentum_;
};

class Adam {
 public:
  Adam(const AdamFactors& factors, float* average, float* square) : f_(factors), average_(average), square_(square) {}
  template <bool kTail, class D, class V = hn::Vec<D>>
  HWY_INLINE V apply(D d, std::size_t i, V value, V gradient) const {
    if (f_.has_decay) {
      const V decay = hn::Set(d, f_.decay);
      if (f_.decoupled) {
        value = hn::Mul(value, decay);
      } else {
        gradient = hn::MulAdd(value, decay, gradient);
      }
    }
    const V before = hn::LoadU(d, average_ + i), step = hn::Sub(gradient, before);
    V average;
    if (f_.mostly_old) {
      average = hn::MulAdd(hn::Set(d, f_.new_part), step, before);
    } else if (kTail) {
      average = hn::NegMulAdd(hn::Set(d, 1 - f_.new_part), step, gradient);
    } else {
      average = hn::MulAdd(hn::Set(d, f_.new_part - 1), step, gradient);
    }
    hn::StoreU(average, d, average_ + i);
    const V old_square = hn::LoadU(d, square_ + i), kept = hn::Set(d, f_.square_old);
    const V scaled = hn::Mul(hn::Set(d, f_.square_new), gradient);
    const V square = kTail ? hn::MulAdd(old_square, kept, hn::Mul(scaled, gradient))
                           : hn::MulAdd(scaled, gradient, hn::Mul(old_square, kept));
    hn::StoreU(square, d, square_ + i);
    const V divisor = hn::Add(hn::Div(hn::Sqrt(square), hn::Set(d, f_.correction)), hn::Set(d, f_.eps));
    return hn::Add(value, hn::Div(hn::Mul(hn::Set(d, f_.negative_step), average), divisor));
  }

 private:
  const AdamFactors f_;
  float* const HWY_RESTRICT average_;
  float* const HWY_RESTRICT square_;
};

// Updates one vector of parameters. kStream: stores of values that are not read soon bypass the caches.
template <bool kTail, bool kStream, class D, class Rule, class Gradient>
HWY_INLINE void step(D d, const Rule& rule, const Stretch& s, const Gradient* HWY_RESTRICT gradients, std::size_t i) {
  const auto old_value = hn::LoadU(d, s.values + i);
  const auto value = rule.template apply<kTail>(d, i, old_value, load(d, gradients + i));
  hn::StoreU(value, d, s.values + i);
  if (s.shadow) {
    if constexpr (kStream && hn::MaxLanes(D()) >= 8) {  // Highway streams 16 bytes and more
      hn::Stream(narrow(d, value), Bits16<D>(), s.shadow + i);
    } else {
      hn::StoreU(narrow(d, value), Bits16<D>(), s.shadow + i);
    }
  }
  if (s.old_values) {
    if constexpr (kStream) {
      hn::Stream(old_value, d, s.old_values + i);
    } else {
      hn::StoreU(old_value, d, s.old_values + i);
    }
  }
}

// Updates four cache lines of each array at a time. Returns the number of updated elements.
template <bool kStream, class Rule, class Gradient>
HWY_INLINE std::size_t step_lines(const Rule& rule, const Stretch& s, const Gradient* gradients) {
  constexpr std::size_t kLine = 64 / sizeof(float), kLines = 4 * kLine;
  const hn::CappedTag<float, kLines> d;
  std::size_t i = 0;
  for (; i + kLines <= s.count; i += kLines) {
    for (std::size_t k = i; k < i + kLines; k += hn::Lanes(d)) step<false, kStream>(d, rule, s, gradients, k);
  }
  return i;
}

bool is_aligned(const void* to) {
  return reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
}

template <class Rule, class Gradient>
HWY_INLINE void run(const Rule& rule, const Stretch& s, const Gradient* gradients) {
  const hn::CappedTag<float, 8> eight;
  const hn::CappedTag<float, 1> one;
  std::size_t i = 0;
  if (s.stream && is_aligned(s.shadow) && is_aligned(s.old_values)) {
    i = step_lines<true>(rule, s, gradients);
    hwy::FlushStream();
  } else {
    i = step_lines<false>(rule, s, gradients);
  }
  const std::size_t body = s.count - s.count % 8;
  for (; i < body; i += hn::Lanes(eight)) step<false, false>(eight, rule, s, gradients, i);
  for (; i < s.count; ++i) step<true, false>(one, rule, s, gradients, i);
}

template <class Rule>
HWY_INLINE void run(const Rule& rule, const Stretch& s) {
  if (s.narrow_gradients) {
    run(rule, s, s.narrow_gradients);
  } else {
    run(rule, s, s.gradients);
  }
}

void sgd(const SgdFactors& factors, const Stretch& stretch, float* momentum) {
  run(Sgd(factors, momentum), stretch);
}
void adam(const AdamFactors& factors, const Stretch& stretch, float* average, float* square) {
  run(Adam(factors, average, square), stretch);
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::train::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::train::kernels {

HWY_EXPORT(sgd);
HWY_EXPORT(adam);

Stretch Stretch::part(std::size_t begin, std::size_t elements) const {
  Stretch result = *this;
  result.count = elements;
  result.values += begin;
  if (gradients) result.gradients += begin;
  if (narrow_gradients) result.narrow_gradients += begin;
  if (shadow) result.shadow += begin;
  if (old_values) result.old_values += begin;
  return result;
}

void update_sgd(const SgdStep& step, const Stretch& stretch, float* momentum) {
  const SgdFactors factors{static_cast<float>(-step.rate),
                           static_cast<float>(step.momentum),
                           static_cast<float>(1 - step.dampening),
                           static_cast<float>(step.weight_decay),
                           step.momentum != 0,
                           step.weight_decay != 0,
                           step.nesterov,
                           step.first};
  HWY_DYNAMIC_DISPATCH(sgd)(factors, stretch, momentum);
}

void update_adam(const AdamStep& step, const Stretch& stretch, float* average, float* square) {
  // libtorch counts updates in a float32.
  const double number = static_cast<float>(step.number);
  const double rate = step.rate / (1 - std::pow(step.beta1, number));
  const double correction = std::sqrt(1 - std::pow(step.beta2, number));
  const float part = static_cast<float>(1 - step.beta1);
  const double decay = step.decoupled ? std::fma(-step.rate, step.weight_decay, 1.0) : step.weight_decay;
  const AdamFactors factors{static_cast<float>(-rate),      part,
                            static_cast<float>(step.beta2), static_cast<float>(1 - step.beta2),
                            static_cast<float>(correction), static_cast<float>(step.eps),
                            static_cast<float>(decay),      std::fabs(part) < 0.5f,
                            step.weight_decay != 0,         step.decoupled};
  HWY_DYNAMIC_DISPATCH(adam)(factors, stretch, average, square);
}

}  // namespace dtrain::train::kernels
#endif
