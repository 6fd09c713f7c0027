// Arrays for tests of kernels: at any alignment, with elements around them that no kernel may write.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "harness/host_block.h"

namespace dtrain::test {

inline constexpr ThreadOrder kOrders[] = {ThreadOrder::kForward, ThreadOrder::kBackward, ThreadOrder::kShuffled};

// An array that begins `offset` elements behind a multiple of 64 bytes.
template <class T>
class Guarded {
 public:
  Guarded(std::int64_t count, int offset) : count_(count), memory_(static_cast<std::size_t>(count) + 3 * kGuard) {
    std::memset(memory_.data(), kGuardByte, memory_.size() * sizeof(T));
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = kGuard + (64 - address % 64) % 64 / sizeof(T) + static_cast<std::size_t>(offset);
  }
  Guarded(const std::vector<T>& values, int offset) : Guarded(static_cast<std::int64_t>(values.size()), offset) {
    for (std::size_t i = 0; i < values.size(); ++i) data()[i] = values[i];
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return memory_.data() + begin_; }
  std::vector<T> values() { return {data(), data() + count_}; }
  void expect_guards() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (i >= begin_ && i < begin_ + static_cast<std::size_t>(count_)) continue;
      T guard;
      std::memset(&guard, kGuardByte, sizeof guard);
      ASSERT_EQ(std::memcmp(&memory_[i], &guard, sizeof guard), 0) << "element " << i << " was written";
    }
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr int kGuardByte = 0xA5;
  std::int64_t count_;
  std::vector<T> memory_;
  std::size_t begin_ = 0;
};

inline std::vector<float> random_floats(std::int64_t count, unsigned seed, double low = -1, double high = 1) {
  std::minstd_rand random(seed + 1);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(low + (high - low) * random() / std::minstd_rand::max()));
  }
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace dtrain::test
