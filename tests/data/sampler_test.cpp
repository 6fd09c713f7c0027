// The division of the order among ranks: the properties that data-parallel training leans on, over a grid of sizes.
#include "dtrain/data/epoch_order.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

using Batch = std::vector<std::int64_t>;

std::shared_ptr<const BlockTable> plain(std::int64_t size) {
  return std::make_shared<BlockTable>(size, Blocks{});
}

// All batches of one rank's epoch, from a position on.
std::vector<Batch> batches(std::int64_t size, const SamplerOptions& options, std::int64_t epoch = 0,
                           std::int64_t position = 0) {
  const Sampler sampler(plain(size), options);
  const EpochOrder order = sampler.order(epoch);
  std::vector<Batch> all;
  const std::int64_t count = sampler.batches_from(position);
  for (std::int64_t b = 0; b < count; ++b) {
    const Sampler::Part part = sampler.part(position + b * sampler.global_batch());
    all.push_back(order.take(part.first, part.count));
  }
  return all;
}

constexpr std::int64_t kLargeSize = Permutation::kListed + 7;

TEST(Sampler, RanksTogetherSeeTheGlobalBatchesOfOneRank) {
  for (const int world : {1, 2, 3, 4}) {
    for (const std::int64_t batch : {1, 2, 5}) {
      for (const std::int64_t size : {std::int64_t{20}, std::int64_t{61}, std::int64_t{100}, kLargeSize}) {
        if (size == kLargeSize && batch != 5) continue;
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

TEST(Sampler, WholeBatchesDoNotDependOnTheNumberOfRanks) {
  for (const std::int64_t size : {1, 4, 5, 19, 20, 21, 39, 61}) {
    const auto alone = batches(size, {.batch_size = 5, .shuffle = false, .drop_last = false, .whole_batches = true});
    for (const int world : {2, 3, 4, 7}) {
      std::vector<Batch> dealt;
      std::vector<std::vector<Batch>> of_ranks;
      for (int rank = 0; rank < world; ++rank) {
        of_ranks.push_back(batches(size, {.batch_size = 5,
                                          .rank = rank,
                                          .world_size = world,
                                          .shuffle = false,
                                          .drop_last = false,
                                          .whole_batches = true}));
      }
      for (std::size_t k = 0; k < alone.size(); ++k) {
        const std::vector<Batch>& mine = of_ranks[k % static_cast<std::size_t>(world)];
        ASSERT_LT(k / static_cast<std::size_t>(world), mine.size()) << size << " on " << world;
        dealt.push_back(mine[k / static_cast<std::size_t>(world)]);
      }
      EXPECT_EQ(dealt, alone) << size << " on " << world;
      std::size_t all = 0;
      for (const auto& mine : of_ranks) all += mine.size();
      EXPECT_EQ(all, alone.size()) << size << " on " << world;
    }
  }
}

// From any position, any number of ranks with any batch continues the one sequence.
TEST(Sampler, GoesOnFromAnyPositionWithAnyRanks) {
  constexpr std::int64_t kSize = 211;
  Batch whole;
  for (const Batch& batch : batches(kSize, {.batch_size = 1, .seed = 3}, 4)) {
    whole.insert(whole.end(), batch.begin(), batch.end());
  }
  for (const std::int64_t position : {0, 1, 30, 97, 209, 210, 211}) {
    for (const int world : {1, 2, 3, 4}) {
      for (const std::int64_t batch : {1, 4, 7}) {
        for (const bool drop_last : {true, false}) {
          std::vector<std::vector<Batch>> of_ranks;
          for (int rank = 0; rank < world; ++rank) {
            const SamplerOptions options{batch, rank, world, true, drop_last, 3};
            of_ranks.push_back(batches(kSize, options, 4, position));
          }
          Batch joined;
          for (std::size_t b = 0; b < of_ranks.front().size(); ++b) {
            for (const auto& one : of_ranks) {
              if (b < one.size()) joined.insert(joined.end(), one[b].begin(), one[b].end());
            }
          }
          const std::int64_t left = kSize - position;
          const std::int64_t expected = drop_last ? left / (world * batch) * (world * batch) : left;
          EXPECT_EQ(joined, Batch(whole.begin() + position, whole.begin() + position + expected));
        }
      }
    }
  }
}

TEST(Sampler, TrainingSkipsOnlyTheRest) {
  const Sampler sampler(plain(103), {.batch_size = 8, .rank = 1, .world_size = 3});
  EXPECT_EQ(sampler.batches_from(0), 4);
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
          ASSERT_EQ(Sampler(plain(size), options).samples_per_epoch(), size);
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
  EXPECT_THROW(Sampler(plain(0), {}), DataError);
  EXPECT_THROW(Sampler(plain(10), {.batch_size = 0}), DataError);
  EXPECT_THROW(Sampler(plain(10), {.world_size = 0}), DataError);
  EXPECT_THROW(Sampler(plain(10), {.rank = 2, .world_size = 2}), DataError);
  EXPECT_THROW(Sampler(plain(10), {.rank = -1, .world_size = 2}), DataError);
  EXPECT_THROW(Sampler(plain(10), {.batch_size = INT64_MAX, .world_size = 2}), DataError);
  try {
    Sampler(plain(10), {.batch_size = 8, .world_size = 2});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("10 samples, less than one global batch of 16"));
    EXPECT_THAT(error.remedy(), ::testing::HasSubstr("global_batch_size at most 10"));
  }
}

}  // namespace
}  // namespace dtrain::data
