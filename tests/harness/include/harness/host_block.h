// Runs dtrain's kernels for GPUs (runtime/train/device/kernels/kernel.h) on the host, for tests and for the fake GPU.
//
// Threads of a phase run one after the other in an order that the caller chooses, and so do blocks. A kernel that gives
// the same bits in every order has no race: of two threads of one phase, each comes first in one of kForward and
// kBackward. Memory of blocks and threads begins as NaN. An index out of range, or a pack that is not aligned, is a
// std::out_of_range.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "device/kernels/kernel.h"

namespace dtrain::test {

enum class ThreadOrder { kForward, kBackward, kShuffled };

// The numbers below `count` in an order.
inline std::vector<int> in_order(int count, ThreadOrder order, std::minstd_rand& random) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == ThreadOrder::kBackward) std::reverse(numbers.begin(), numbers.end());
  if (order == ThreadOrder::kShuffled) std::shuffle(numbers.begin(), numbers.end(), random);
  return numbers;
}

template <class T>
class HostArray {
 public:
  HostArray(T* data, std::int64_t count) : data_(data), count_(count) {}
  template <int n>
  auto get(std::int64_t begin) const {
    check(begin, n);
    train::cuda::Pack<std::remove_const_t<T>, n> pack;
    std::memcpy(&pack, data_ + begin, sizeof pack);
    return pack;
  }
  template <int n>
  void put(std::int64_t begin, const train::cuda::Pack<T, n>& pack) const {
    check(begin, n);
    std::memcpy(data_ + begin, &pack, sizeof pack);
  }

 private:
  void check(std::int64_t begin, int n) const {
    const std::string what = std::to_string(n) + " elements at " + std::to_string(begin);
    if (begin < 0 || begin + n > count_) throw std::out_of_range(what + " of " + std::to_string(count_));
    if (!train::cuda::is_aligned(data_ + begin, n * static_cast<int>(sizeof(T)))) {
      throw std::out_of_range(what + " are not aligned");
    }
  }

  T* data_;
  std::int64_t count_;
};

// A variable of each thread of a block.
template <class T>
class HostThreads {
 public:
  HostThreads() : memory_(train::cuda::kThreads) { std::memset(memory_.data(), 0xFF, memory_.size() * sizeof(T)); }
  T& operator[](int thread) { return memory_.at(static_cast<std::size_t>(thread)); }

 private:
  static_assert(std::is_trivial_v<T>);
  std::vector<T> memory_;
};

template <class Shared>
class HostBlock {
 public:
  HostBlock(int index, int blocks, ThreadOrder order, std::minstd_rand& random)
      : index_(index), blocks_(blocks), order_(order), random_(random) {
    std::fill(std::begin(memory_), std::end(memory_), std::byte{0xFF});
  }
  int index() const { return index_; }
  int blocks() const { return blocks_; }
  Shared& shared() { return *reinterpret_cast<Shared*>(memory_); }
  template <class T>
  HostThreads<T> of_threads() const {
    return {};
  }
  template <class T>
  HostArray<T> array(T* data, std::int64_t count) const {
    return {data, count};
  }
  template <class Phase>
  void each(const Phase& phase) {
    for (const int thread : in_order(train::cuda::kThreads, order_, random_)) phase(thread);
  }

 private:
  static_assert(std::is_trivial_v<Shared>);

  const int index_;
  const int blocks_;
  const ThreadOrder order_;
  std::minstd_rand& random_;
  alignas(Shared) std::byte memory_[sizeof(Shared)];
};

// Calls `kernel`(block, arguments) for each block.
template <class Shared, class Kernel, class Arguments>
void run_on_host(const Kernel& kernel, const Arguments& arguments, int blocks, ThreadOrder order, unsigned seed = 1) {
  std::minstd_rand random(seed);
  for (const int index : in_order(blocks, order, random)) {
    HostBlock<Shared> block(index, blocks, order, random);
    kernel(block, arguments);
  }
}

}  // namespace dtrain::test
