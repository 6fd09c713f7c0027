// Seeds of libtorch's random stream, which is seeded anew before each batch and each validation: so nothing of it has
// to be saved. Plain functions.
#pragma once

#include <cstdint>

namespace dtrain::train {

// What the random numbers are for.
enum class Draws : std::uint64_t { kTraining = 0, kValidation = 1 };

// A function of the experiment's seed, the rank, the batch and the purpose. The mixing is the finalizer of splitmix64
// (Steele, Lea and Flood, OOPSLA 2014).
inline std::uint64_t random_seed(std::uint64_t seed, int rank, std::int64_t batch, Draws draws) {
  std::uint64_t x = seed ^ static_cast<std::uint64_t>(draws) << 63;
  for (const std::uint64_t part : {static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(batch)}) {
    x += 0x9e3779b97f4a7c15u * (part + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

}  // namespace dtrain::train
