// The order in which an epoch takes the samples of a data set: a permutation that is a pure function of (size, seed,
// epoch), the same on every machine.
//
// A permutation of up to kListed samples is drawn once and kept (Fisher-Yates: every order is equally likely). A larger
// one is computed sample by sample and takes no memory. A Feistel network (Luby and Rackoff 1988) permutes all numbers
// that have as many bits as the size. A result beyond the size is permuted again until it is below the size (cycle
// walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). That takes less than one extra
// permutation on average.
//
// Immutable; any thread may call.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace dtrain::data {

class EpochOrder {
 public:
  static constexpr std::int64_t kListed = 1 << 16;

  // Not shuffled: the order of the data set.
  explicit EpochOrder(std::int64_t size) : size_(size) {}
  // Shuffled. `size` is at least 1.
  EpochOrder(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

  std::int64_t size() const { return size_; }
  // The sample at `position`, from 0 to size() - 1.
  std::int64_t at(std::int64_t position) const;

 private:
  std::uint64_t permute(std::uint64_t value) const;

  static constexpr int kRounds = 8;
  std::int64_t size_;
  std::vector<std::int64_t> list_;    // up to kListed samples
  int low_bits_ = 0, high_bits_ = 0;  // 0: not shuffled, or kept in list_
  std::array<std::uint64_t, kRounds> keys_{};
};

// 0 … size-1 shuffled: Fisher-Yates from the end, with random numbers from splitmix64 and Lemire's unbiased bound.
// std::shuffle is not used because its order depends on the standard library.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

}  // namespace dtrain::data
