#include "numerics/kernels.h"

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/uniform_kernel.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "numerics/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace dtrain::train::kernels {
namespace HWY_NAMESPACE {

constexpr std::size_t kWords = std::tuple_size_v<decltype(MersenneTwister::words)>;
constexpr std::size_t kDistance = 397;  // from a word to the one that is mixed into its successor
constexpr std::uint32_t kHighBit = 0x80000000, kFactor = 0x9908B0DF;

HWY_INLINE std::uint32_t twisted(std::uint32_t word, std::uint32_t next, std::uint32_t other) {
  const std::uint32_t mixed = (word & kHighBit) | (next & ~kHighBit);
  return other ^ (mixed >> 1) ^ ((next & 1) != 0 ? kFactor : 0);
}

// Replaces `count` words, behind which another one follows. `others`: the words that are mixed into them.
HWY_INLINE void twist(std::uint32_t* words, const std::uint32_t* others, std::size_t count) {
  const Words d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto next = hn::LoadU(d, words + i + 1);
    const auto mixed = hn::OrAnd(hn::And(hn::LoadU(d, words + i), hn::Set(d, kHighBit)), next, hn::Set(d, ~kHighBit));
    const auto odd = hn::Ne(hn::And(next, hn::Set(d, 1)), hn::Zero(d));
    const auto factor = hn::IfThenElseZero(odd, hn::Set(d, kFactor));
    hn::StoreU(hn::Xor3(hn::LoadU(d, others + i), hn::ShiftRight<1>(mixed), factor), d, words + i);
  }
  for (; i < count; ++i) words[i] = twisted(words[i], words[i + 1], others[i]);
}

void next_words(std::uint32_t* words) {
  constexpr std::size_t kFirst = kWords - kDistance;
  twist(words, words + kDistance, kFirst);
  twist(words + kFirst, words, kDistance - 1);
  words[kWords - 1] = twisted(words[kWords - 1], words[0], words[kDistance - 1]);
}

template <class D = Words>
HWY_INLINE hn::Vec<D> tempered(hn::Vec<D> y) {
  const D d;
  y = hn::Xor(y, hn::ShiftRight<11>(y));
  y = hn::Xor(y, hn::And(hn::ShiftLeft<7>(y), hn::Set(d, 0x9D2C5680)));
  y = hn::Xor(y, hn::And(hn::ShiftLeft<15>(y), hn::Set(d, 0xEFC60000)));
  return hn::Xor(y, hn::ShiftRight<18>(y));
}

void scale(const std::uint32_t* words, std::size_t count, const UniformRange& range, float* to) {
  const std::size_t lanes = hn::Lanes(Words());
  const auto number = [&](const std::uint32_t* from) {
    const auto bits = hn::And(tempered(hn::LoadU(Words(), from)), hn::Set(Words(), 0xFFFFFF));
    const auto x =
        hn::Mul(hn::ConvertTo(Floats(), hn::BitCast(hn::RebindToSigned<Floats>(), bits)), hn::Set(Floats(), 0x1p-24F));
    const auto width = hn::Set(Floats(), range.to - range.from), from_value = hn::Set(Floats(), range.from);
    return range.fused ? hn::MulAdd(x, width, from_value) : hn::Add(hn::Mul(x, width), from_value);
  };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) store(number(words + i), to + i);
  if (i == count) return;
  std::uint32_t padded[hn::MaxLanes(Words())] = {};
  for (std::size_t k = 0; i + k < count; ++k) padded[k] = words[i + k];
  store_some(number(padded), count - i, to + i);
}

void fill(MersenneTwister& twister, const UniformRange& range, float* to, std::size_t count) {
  while (count > 0) {
    if (twister.next == kWords) {
      next_words(twister.words.data());
      twister.next = 0;
    }
    const std::size_t taken = HWY_MIN(count, kWords - twister.next);
    scale(twister.words.data() + twister.next, taken, range, to);
    twister.next += taken;
    to += taken;
    count -= taken;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::train::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::train::kernels {

HWY_EXPORT(fill);

void uniform(MersenneTwister& twister, const UniformRange& range, float* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(fill)(twister, range, to, count);
}

}  // namespace dtrain::train::kernels
#endif
