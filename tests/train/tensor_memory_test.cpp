// The memory of large tensors: blocks never overlap, what is mapped stays near what is in use, and small allocations
// between large ones do not make the process grow.
#include "model/tensor_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace dtrain::train {
namespace {

constexpr std::size_t kMiB = 1 << 20;

std::size_t resident_bytes() {
  std::size_t size = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// A block that was handed out, filled with bytes of its own.
struct Held {
  c10::DataPtr data;
  std::size_t bytes = 0;
  int mark = 0;

  bool is_whole() const {
    const auto* const all = static_cast<const unsigned char*>(data.get());
    for (std::size_t i = 0; i < bytes; i += 1023)
      if (all[i] != mark) return false;
    return all[bytes - 1] == mark;
  }
};

// Random sizes, small and large, in a random order: nothing is handed out twice.
void allocate_and_free(std::uint64_t seed, TensorMemory& memory) {
  std::mt19937_64 dice(seed);
  std::vector<Held> held;
  for (int turn = 0; turn < 3000; ++turn) {
    if (held.size() > 40 || (!held.empty() && dice() % 2 == 0)) {
      const std::size_t chosen = dice() % held.size();
      ASSERT_TRUE(held[chosen].is_whole()) << "seed " << seed << ", turn " << turn;
      std::swap(held[chosen], held.back());
      held.pop_back();
      continue;
    }
    const std::size_t bytes = dice() % 4 == 0 ? 1 + dice() % 4096 : 1 + dice() % (3 * kMiB);
    held.push_back({memory.allocate(bytes), bytes, static_cast<int>(dice() % 256)});
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(held.back().data.get()) % 64, 0U);
    std::memset(held.back().data.get(), held.back().mark, bytes);
  }
}

TEST(TensorMemory, HandsOutNothingTwice) {
  TensorMemory& memory = TensorMemory::install();
  const std::size_t before = memory.use().in_use;
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) threads.emplace_back([&, seed] { allocate_and_free(seed, memory); });
  for (std::thread& thread : threads) thread.join();
  const TensorMemory::Use use = memory.use();
  EXPECT_EQ(use.in_use, before);
  EXPECT_LE(use.peak_mapped, use.peak_in_use + use.peak_in_use / 8 + TensorMemory::kSlack);
}

TEST(TensorMemory, ServesTensorsAndRawAllocations) {
  TensorMemory& memory = TensorMemory::install();
  const std::size_t before = memory.use().in_use;
  {
    at::Tensor tensor = at::ones({1000, 1000});
    EXPECT_GE(memory.use().in_use - before, 4'000'000U);
    EXPECT_EQ(tensor.sum().item<float>(), 1e6F);
    tensor.resize_({2000, 1000});
    EXPECT_EQ(tensor[999][999].item<float>(), 1.0F);
  }
  EXPECT_EQ(memory.use().in_use, before);
  for (const std::size_t bytes : {std::size_t{100}, 5 * kMiB}) memory.raw_deallocate(memory.raw_allocate(bytes));
  EXPECT_EQ(memory.use().in_use, before);
}

// As a language model does: scores of a large vocabulary come and go, their size differs from batch to batch, and small
// allocations that stay are made in between. Each of them once held the place of freed scores on the heap.
TEST(TensorMemory, StepsWithALargeVocabularyDoNotGrow) {
  TensorMemory& memory = TensorMemory::install();
  constexpr std::int64_t kVocabulary = 50'304;
  std::vector<std::unique_ptr<char[]>> stay;
  std::size_t settled = 0;
  std::mt19937 dice(1);
  for (int step = 0; step < 300; ++step) {
    const std::int64_t tokens = 48 + static_cast<std::int64_t>(dice() % 17);
    at::Tensor scores = at::full({tokens, kVocabulary}, 0.5F);
    stay.push_back(std::make_unique<char[]>(8 << 10));
    std::memset(stay.back().get(), 1, 8 << 10);
    at::Tensor gradient = scores.mul(2.0F);
    scores.reset();
    stay.push_back(std::make_unique<char[]>(100));
    at::Tensor narrow = gradient.to(at::kBFloat16);
    if (step == 50) settled = resident_bytes();
  }
  const TensorMemory::Use use = memory.use();
  EXPECT_LE(use.peak_mapped, use.peak_in_use + use.peak_in_use / 8 + TensorMemory::kSlack);
  EXPECT_LE(resident_bytes(), settled + 16 * kMiB) << ::mallinfo2().fordblks << " bytes are free on the heap";
}

// As a validation between two steps, whose batches have other sizes.
TEST(TensorMemory, WhatAnInterludeMapsGoesBack) {
  TensorMemory& memory = TensorMemory::install();
  const auto step = [] { at::ones({1000, 1000}).mul(2.0F); };
  step();
  at::Tensor stays;
  for (int turn = 0; turn < 2; ++turn) {
    std::size_t resident = 0, mapped = 0;
    {
      const TensorMemory::Interlude interlude;
      step();
      stays.reset();
      const at::Tensor goes = at::ones({1777, 3333});  // 22.6 MiB, more than any block that another test has left
      stays = at::ones({2000, 2222});
      mapped = memory.use().mapped;
      resident = resident_bytes();
    }
    EXPECT_LE(memory.use().mapped + 22 * kMiB, mapped);
    EXPECT_LE(resident_bytes() + 20 * kMiB, resident);
    EXPECT_EQ(stays.sum().item<float>(), 2000 * 2222.0F);
    step();
  }
}

}  // namespace
}  // namespace dtrain::train
