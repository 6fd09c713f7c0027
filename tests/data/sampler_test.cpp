// The order of samples: the properties that data-parallel training leans on, over a grid of sizes.
#include "dtrain/data/sampler.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

using Batch = std::vector<std::int64_t>;

// All batches of one rank's epoch.
std::vector<Batch> batches(std::int64_t size, const SamplerOptions& options, std::int64_t epoch = 0) {
  const Sampler sampler(size, options);
  const auto order = sampler.order(epoch);
  std::vector<Batch> all;
  for (std::int64_t b = 0; b < sampler.batches_per_epoch(); ++b) all.push_back(sampler.batch(order, b));
  return all;
}

TEST(Permutation, HoldsEverySampleOnce) {
  for (const std::int64_t size : {1, 2, 3, 10, 1'000}) {
    auto order = permutation(size, 42, 3);
    std::sort(order.begin(), order.end());
    Batch expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
  }
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
constexpr std::int64_t kLarge = EpochOrder::kListed + 1;

TEST(EpochOrder, HoldsEverySampleOnceAtAnySize) {
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, kLarge - 2, kLarge - 1, kLarge, std::int64_t{100'001},
        std::int64_t{131'072}, std::int64_t{131'073}, std::int64_t{1'000'003}}) {
    const EpochOrder order(size, 42, 3);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t sample = order.at(i);
      ASSERT_TRUE(sample >= 0 && sample < size) << sample << " of " << size;
      ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]) << sample << " twice, of " << size;
      seen[static_cast<std::size_t>(sample)] = true;
    }
  }
}

TEST(EpochOrder, DependsOnSizeSeedAndEpochAlone) {
  const auto first = [](const EpochOrder& order) {
    Batch samples;
    for (std::int64_t i = 0; i < 50; ++i) samples.push_back(order.at(i));
    return samples;
  };
  const Batch samples = first({kLarge, 1, 2});
  EXPECT_EQ(samples, first({kLarge, 1, 2}));
  EXPECT_NE(samples, first({kLarge, 1, 3}));
  EXPECT_NE(samples, first({kLarge, 2, 2}));
  EXPECT_NE(samples, first({kLarge, 2, 1}));
  EXPECT_EQ(EpochOrder(kLarge).at(17), 17);
}

// A resumed or repeated run of another build must see the same order: a change here breaks reproducibility.
TEST(EpochOrder, KnownOrder) {
  const EpochOrder order(1'000'003, 7, 5);
  Batch samples;
  for (std::int64_t i = 0; i < 5; ++i) samples.push_back(order.at(i));
  EXPECT_THAT(samples, ::testing::ElementsAre(38359, 419179, 830640, 387926, 846029));
}

// Every place is equally likely for a sample in every epoch, and neighbours do not stay neighbours.
TEST(EpochOrder, IsEven) {
  constexpr std::int64_t kSize = 100'003;
  constexpr int kCells = 16, kEpochs = 400, kPositions = 16;
  std::vector<std::vector<int>> counts(kPositions, std::vector<int>(kCells));
  std::int64_t rising = 0, draws = 0;
  double distance = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const EpochOrder order(kSize, 9, epoch);
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

TEST(EpochOrder, TakesLessThanAMegabyteOfMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer keeps several bytes of its own for each byte that is touched";
#endif
  for (const std::int64_t size : {kLarge - 1, std::int64_t{50'000'003}}) {
    const std::int64_t before = resident_bytes();
    const Sampler sampler(size, {.batch_size = 8, .rank = 1, .world_size = 3, .seed = 5});
    const auto order = sampler.order(4);
    EXPECT_EQ(sampler.batch(order, sampler.batches_per_epoch() - 1).size(), 8u);
    EXPECT_LT(resident_bytes() - before, 1 << 20) << size;
  }
}

TEST(Sampler, RanksTogetherSeeTheGlobalBatchesOfOneRank) {
  for (const int world : {1, 2, 3, 4}) {
    for (const std::int64_t batch : {1, 2, 5}) {
      for (const std::int64_t size : {std::int64_t{20}, std::int64_t{61}, std::int64_t{100}, kLarge + 6}) {
        if (size == kLarge + 6 && batch != 5) continue;
        const auto whole = batches(size, {.batch_size = world * batch, .seed = 5}, 2);
        std::vector<Batch> joined(whole.size());
        for (int rank = 0; rank < world; ++rank) {
          const auto mine = batches(size, {.batch_size = batch, .rank = rank, .world_size = world, .seed = 5}, 2);
          ASSERT_EQ(mine.size(), whole.size());
          for (std::size_t b = 0; b < mine.size(); ++b) {
            EXPECT_EQ(mine[b].size(), static_cast<std::size_t>(batch));
            joined[b].insert(joined[b].end(), mine[b].begin(), mine[b].end());
          }
        }
        EXPECT_EQ(joined, whole);
      }
    }
  }
}

TEST(Sampler, TrainingSkipsOnlyTheRest) {
  const Sampler sampler(103, {.batch_size = 8, .rank = 1, .world_size = 3});
  EXPECT_EQ(sampler.batches_per_epoch(), 4);
  EXPECT_EQ(sampler.samples_per_epoch(), 96);
}

TEST(Sampler, ValidationSeesEverySampleExactlyOnceAndBalanced) {
  for (const int world : {1, 2, 3, 4, 7}) {
    for (const std::int64_t batch : {1, 2, 8}) {
      for (std::int64_t size = 1; size <= 60; ++size) {
        Batch seen;
        std::vector<std::int64_t> samples_of, batches_of;
        for (int rank = 0; rank < world; ++rank) {
          const SamplerOptions options{batch, rank, world, false, false, 0};
          const auto mine = batches(size, options);
          std::int64_t samples = 0;
          for (const auto& one : mine) {
            ASSERT_FALSE(one.empty());
            ASSERT_LE(one.size(), static_cast<std::size_t>(batch));
            seen.insert(seen.end(), one.begin(), one.end());
            samples += static_cast<std::int64_t>(one.size());
          }
          samples_of.push_back(samples);
          batches_of.push_back(static_cast<std::int64_t>(mine.size()));
          ASSERT_EQ(Sampler(size, options).samples_per_epoch(), size);
        }
        std::sort(seen.begin(), seen.end());
        Batch expected(static_cast<std::size_t>(size));
        std::iota(expected.begin(), expected.end(), 0);
        ASSERT_EQ(seen, expected) << world << " ranks, batch " << batch << ", " << size << " samples";
        const auto [fewest, most] = std::minmax_element(samples_of.begin(), samples_of.end());
        ASSERT_LE(*most - *fewest, 1);
        const auto [shortest, longest] = std::minmax_element(batches_of.begin(), batches_of.end());
        ASSERT_LE(*longest - *shortest, 1);
      }
    }
  }
}

TEST(Sampler, WithoutShufflingTheOrderIsTheFiles) {
  EXPECT_EQ(batches(5, {.batch_size = 2, .shuffle = false, .drop_last = false}),
            (std::vector<Batch>{{0, 1}, {2, 3}, {4}}));
}

TEST(Sampler, OptionsThatMakeNoSense) {
  EXPECT_THROW(Sampler(0, {}), DataError);
  EXPECT_THROW(Sampler(10, {.batch_size = 0}), DataError);
  EXPECT_THROW(Sampler(10, {.world_size = 0}), DataError);
  EXPECT_THROW(Sampler(10, {.rank = 2, .world_size = 2}), DataError);
  EXPECT_THROW(Sampler(10, {.rank = -1, .world_size = 2}), DataError);
  EXPECT_THROW(Sampler(10, {.batch_size = INT64_MAX, .world_size = 2}), DataError);
  try {
    Sampler(10, {.batch_size = 8, .world_size = 2});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("10 samples, less than one global batch of 16"));
    EXPECT_THAT(error.remedy(), ::testing::HasSubstr("global_batch_size at most 10"));
  }
}

}  // namespace
}  // namespace dtrain::data
