// Random numbers as a function of their purpose: a stream is named by a few integers (seed, epoch, …) and holds no
// other state than its position. splitmix64 (Steele, Lea, Flood 2014), the same on every machine. Not for secrets.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace dtrain::data {

inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ull;

constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

class RandomStream {
 public:
  RandomStream(std::initializer_list<std::uint64_t> name) {
    for (const auto part : name) state_ = mix64(state_ + kGoldenGamma + part);
  }

  std::uint64_t next() { return mix64(state_ += kGoldenGamma); }

  // Returns a number in [0, bound), every value equally likely (Lemire 2019). `bound` is not 0.
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    auto product = static_cast<Wide>(next()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = -bound % bound;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  // Returns a number in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // Returns a number in [-1, 1), a multiple of 2^-23, which is exact in float.
  float symmetric() { return static_cast<float>(static_cast<std::int64_t>(next() >> 40) - (1 << 23)) * 0x1p-23f; }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace dtrain::data
