// Permutations and the order of an epoch: every sample once, evenly, and block by block.
#include "dtrain/data/epoch_order.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

using Batch = std::vector<std::int64_t>;

TEST(Permutation, HoldsEverySampleOnce) {
  for (const std::int64_t size : {1, 2, 3, 10, 1'000}) {
    auto order = permutation(size, 42, 3);
    std::sort(order.begin(), order.end());
    Batch expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
  }
}

// Checkpoints rely on it, and tests/python/loaders.py compares Python's loader with the same numbers.
TEST(Permutation, StaysAsItIs) {
  EXPECT_EQ(permutation(10, 7, 0), (Batch{4, 9, 6, 8, 1, 2, 5, 0, 3, 7}));
  EXPECT_EQ(permutation(10, 7, 1), (Batch{5, 2, 6, 8, 3, 4, 0, 9, 1, 7}));
}

TEST(Permutation, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(permutation(100, 1, 2), permutation(100, 1, 2));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 1, 3));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 2, 2));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 2, 1));
}

// A resumed or repeated run of another build must see the same order: a change here breaks reproducibility.
TEST(Permutation, KnownOrder) {
  EXPECT_THAT(permutation(10, 0, 0), ::testing::ElementsAre(1, 8, 6, 2, 5, 3, 0, 4, 7, 9));
  EXPECT_THAT(permutation(10, 7, 5), ::testing::ElementsAre(6, 1, 5, 9, 2, 7, 3, 4, 8, 0));
}

TEST(Permutation, EveryOrderIsEquallyLikely) {
  std::map<Batch, int> seen;
  constexpr int kDraws = 24'000;
  for (int epoch = 0; epoch < kDraws; ++epoch) ++seen[permutation(4, 9, epoch)];
  EXPECT_EQ(seen.size(), 24u);
  double chi_squared = 0;
  for (const auto& [order, count] : seen) chi_squared += (count - 1'000.0) * (count - 1'000.0) / 1'000.0;
  EXPECT_LT(chi_squared, 50.0);  // 23 degrees of freedom: above 49.7 once in a thousand; the draws are fixed
}

// Above kListed samples the order is computed sample by sample.
constexpr std::int64_t kLarge = Permutation::kListed + 1;

TEST(LargePermutation, HoldsEverySampleOnceAtAnySize) {
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, kLarge - 2, kLarge - 1, kLarge, std::int64_t{100'001},
        std::int64_t{131'072}, std::int64_t{131'073}, std::int64_t{1'000'003}}) {
    const Permutation order(size, 42, 3);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t sample = order.at(i);
      ASSERT_TRUE(sample >= 0 && sample < size) << sample << " of " << size;
      ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]) << sample << " twice, of " << size;
      seen[static_cast<std::size_t>(sample)] = true;
    }
  }
}

TEST(LargePermutation, DependsOnSizeSeedAndEpochAlone) {
  const auto first = [](const Permutation& order) {
    Batch samples;
    for (std::int64_t i = 0; i < 50; ++i) samples.push_back(order.at(i));
    return samples;
  };
  const Batch samples = first({kLarge, 1, 2});
  EXPECT_EQ(samples, first({kLarge, 1, 2}));
  EXPECT_NE(samples, first({kLarge, 1, 3}));
  EXPECT_NE(samples, first({kLarge, 2, 2}));
  EXPECT_NE(samples, first({kLarge, 2, 1}));
  EXPECT_EQ(Permutation(kLarge).at(17), 17);
}

// A resumed or repeated run of another build must see the same order: a change here breaks reproducibility.
TEST(LargePermutation, KnownOrder) {
  const Permutation order(1'000'003, 7, 5);
  Batch samples;
  for (std::int64_t i = 0; i < 5; ++i) samples.push_back(order.at(i));
  EXPECT_THAT(samples, ::testing::ElementsAre(38359, 419179, 830640, 387926, 846029));
}

// Two numbers whose places differ by 2^k differ in one half of the Feistel network alone, which is what few rounds
// show: the difference of the results is then far from even. Chi squared of it, for each k, over several keys; the
// largest.
double unevenness(int rounds) {
  constexpr std::int64_t kSize = std::int64_t{1} << 17;
  constexpr int kCells = 256, kKeys = 4;
  double worst = 0;
  for (int k = 0; k < 17; ++k) {
    std::vector<int> high(kCells), low(kCells);
    std::int64_t pairs = 0;
    for (int key = 0; key < kKeys; ++key) {
      const Permutation order(kSize, 77, key, rounds);
      for (std::int64_t i = 0; i < kSize; i += 7) {
        const std::int64_t other = i ^ (std::int64_t{1} << k);
        const auto difference = static_cast<std::size_t>(order.at(i) ^ order.at(other));
        ++high[(difference >> 9) % kCells];
        ++low[difference % kCells];
        ++pairs;
      }
    }
    const double expected = static_cast<double>(pairs) / kCells;
    for (const auto& cells : {high, low}) {
      double chi_squared = 0;
      for (const int count : cells) chi_squared += (count - expected) * (count - expected) / expected;
      worst = std::max(worst, chi_squared);
    }
  }
  return worst;
}

// 255 degrees of freedom: of 34 such numbers one is above 350 less than once in a thousand; the keys are fixed.
TEST(LargePermutation, HasRoundsEnough) {
  EXPECT_GT(unevenness(2), 10'000);
  EXPECT_GT(unevenness(4), 350);
  EXPECT_LT(unevenness(6), 350);
  EXPECT_LT(unevenness(Permutation::kRounds), 350);
}

// Every place is equally likely for a sample in every epoch, and neighbours do not stay neighbours.
TEST(LargePermutation, IsEven) {
  constexpr std::int64_t kSize = 100'003;
  constexpr int kCells = 16, kEpochs = 400, kPositions = 16;
  std::vector<std::vector<int>> counts(kPositions, std::vector<int>(kCells));
  std::int64_t rising = 0, draws = 0;
  double distance = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation order(kSize, 9, epoch);
    for (int i = 0; i < kPositions; ++i) {
      const std::int64_t position = i * (kSize / kPositions);
      const std::int64_t here = order.at(position), next = order.at(position + 1);
      ++counts[static_cast<std::size_t>(i)][static_cast<std::size_t>(here * kCells / kSize)];
      rising += next > here;
      distance += static_cast<double>(std::abs(next - here)) / static_cast<double>(kSize);
      ++draws;
    }
  }
  double chi_squared = 0;
  constexpr double kExpected = static_cast<double>(kEpochs) / kCells;
  for (const auto& cells : counts) {
    for (const int count : cells) chi_squared += (count - kExpected) * (count - kExpected) / kExpected;
  }
  EXPECT_LT(chi_squared, 310.0);  // 240 degrees of freedom: above 309 once in five hundred; the draws are fixed
  EXPECT_NEAR(static_cast<double>(rising) / static_cast<double>(draws), 0.5, 0.02);
  EXPECT_NEAR(distance / static_cast<double>(draws), 1.0 / 3, 0.02);  // of two independent places
}

std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

TEST(LargePermutation, TakesLessThanAMegabyteOfMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer keeps several bytes of its own for each byte that is touched";
#endif
  for (const std::int64_t size : {kLarge - 1, std::int64_t{50'000'003}}) {
    const std::int64_t before = resident_bytes();
    const Permutation order(size, 5, 4);
    EXPECT_LT(order.at(size - 1), size);
    EXPECT_LT(resident_bytes() - before, 1 << 20) << size;
  }
}

std::shared_ptr<const BlockTable> table(const std::vector<std::int64_t>& blocks, std::int64_t together) {
  const std::int64_t size = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  return std::make_shared<BlockTable>(size, Blocks{blocks, 1}, together);
}

TEST(EpochOrder, WithoutBlocksIsOnePermutation) {
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{50}, kLarge}) {
    const EpochOrder order(std::make_shared<BlockTable>(size, Blocks{}), 3, 7);
    const Permutation expected(size, 3, 7);
    const Batch taken = order.take(0, size);
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(taken[static_cast<std::size_t>(i)], expected.at(i));
  }
}

// A data set whose blocks fit one window has the order of one without blocks.
TEST(EpochOrder, OneWindowIsOnePermutation) {
  const EpochOrder order(table({30, 0, 25, 45}, 4), 3, 7);
  EXPECT_EQ(order.take(0, 100), permutation(100, 3, 7));
}

TEST(EpochOrder, EveryBlockIsReadWithinItsWindow) {
  for (const std::vector<std::int64_t>& blocks :
       {std::vector<std::int64_t>(40, 25), std::vector<std::int64_t>{1, 0, 700, 3, 3, 0, 90, 4, 1, 200, 1}}) {
    for (const std::int64_t together : {1, 2, 3}) {
      const auto layout = table(blocks, together);
      const EpochOrder order(layout, 5, 2);
      const Batch whole = order.take(0, order.size());
      EXPECT_EQ(std::set<std::int64_t>(whole.begin(), whole.end()).size(), whole.size());
      for (std::int64_t index = 0; index < order.blocks(); index += together) {
        std::set<std::int64_t> of_blocks;
        const std::int64_t end = std::min(index + together, order.blocks());
        for (std::int64_t b = index; b < end; ++b) {
          const EpochOrder::Run run = order.block(b);
          for (std::int64_t i = 0; i < run.samples; ++i) of_blocks.insert(run.first + i);
        }
        const auto begin = whole.begin() + order.begin(index);
        EXPECT_EQ(std::set<std::int64_t>(begin, whole.begin() + order.begin(end)), of_blocks);
        EXPECT_EQ(order.window_block(order.begin(index)), index);
        EXPECT_EQ(order.window_block(order.begin(end) - 1), index);
      }
      for (std::int64_t at = 0; at < order.size(); at += 37) {
        const std::int64_t count = std::min<std::int64_t>(60, order.size() - at);
        EXPECT_EQ(order.take(at, count), Batch(whole.begin() + at, whole.begin() + at + count));
      }
    }
  }
}

TEST(EpochOrder, BlocksHaveAnotherOrderInEachEpoch) {
  const auto layout = table(std::vector<std::int64_t>(100, 10), 2);
  const auto first_blocks = [&](std::uint64_t seed, std::int64_t epoch) {
    const EpochOrder order(layout, seed, epoch);
    Batch firsts;
    for (std::int64_t b = 0; b < 20; ++b) firsts.push_back(order.block(b).first);
    return firsts;
  };
  EXPECT_EQ(first_blocks(1, 1), first_blocks(1, 1));
  EXPECT_NE(first_blocks(1, 1), first_blocks(1, 2));
  EXPECT_NE(first_blocks(1, 1), first_blocks(2, 1));
}

TEST(BlockTable, PutsNeighboursTogetherWhereThereAreTooMany) {
  const std::int64_t blocks = 3 * BlockTable::kMostBlocks + 5;
  const BlockTable layout(2 * blocks, {std::vector<std::int64_t>(static_cast<std::size_t>(blocks), 2), 1 << 20});
  EXPECT_LE(layout.count(), BlockTable::kMostBlocks);
  EXPECT_EQ(layout.samples(0), 8);
  EXPECT_EQ(layout.size(), 2 * blocks);
  EXPECT_EQ(layout.together(), BlockTable::kWindowBytes / (4 << 20));
}

TEST(BlockTable, RefusesBlocksThatDoNotAddUp) {
  EXPECT_THROW(BlockTable(10, {{4, 5}, 1}), DataError);
  EXPECT_THROW(BlockTable(10, {{-1, 11}, 1}), DataError);
  EXPECT_NE(BlockTable(10, {{4, 6}, 1}, 1).text(), BlockTable(10, {{5, 5}, 1}, 1).text());
  EXPECT_EQ(BlockTable(10, {{4, 6}, 1}, 2).text(), BlockTable(10, {}).text());
}

}  // namespace
}  // namespace dtrain::data
