#include "diff/compare_steps.h"

#include <gmock/gmock.h>

#include "made_runs.h"

namespace dtrain::analysis::diff {
namespace {

using testing::DoubleEq;
using testing::DoubleNear;

TEST(Autocorrelation, OfTinySeries) {
  const std::vector<double> alternating = {1, -1, 1, -1};
  EXPECT_THAT(autocorrelation(alternating, 1), DoubleEq(-0.75));
  EXPECT_THAT(autocorrelation(alternating, 2), DoubleEq(0.5));
  EXPECT_EQ(autocorrelation(alternating, 4), 0);
  EXPECT_EQ(autocorrelation(std::vector<double>{5, 5, 5}, 1), 0) << "a constant";
  EXPECT_EQ(autocorrelation({}, 1), 0);
}

TEST(BlockLength, GrowsWithTheDependenceAndIsBounded) {
  const auto mean_length = [](double hold) {
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) sum += block_length(ar_steps(2000, 10, 0.05, hold, seed));
    return sum / 20;
  };
  // For an autoregressive series the best length is (2 hold / (1 - hold^2))^(2/3) n^(1/3).
  EXPECT_LT(mean_length(0), 6);
  EXPECT_NEAR(mean_length(0.5), 15.3, 5);
  EXPECT_NEAR(mean_length(0.9), 56.4, 20);
  std::vector<double> trend(900);
  for (std::size_t i = 0; i < trend.size(); ++i) trend[i] = static_cast<double>(i);
  EXPECT_LE(block_length(trend), 3 * 30);
  EXPECT_GT(block_length(trend), 30);
  EXPECT_EQ(block_length(std::vector<double>(100, 7.0)), 1);
  EXPECT_EQ(block_length(std::vector<double>{1, 2, 3}), 1);
}

TEST(StationaryBootstrap, DrawsBlocksOfThisMeanLength) {
  StationaryBootstrap draws(1000, 20, 1);
  double blocks = 0;
  std::vector<int> seen(1000, 0);
  for (int i = 0; i < 200; ++i) {
    const auto& indices = draws.draw();
    ASSERT_EQ(indices.size(), 1000U);
    for (std::size_t at = 0; at < indices.size(); ++at) {
      ASSERT_LT(indices[at], 1000U);
      ++seen[indices[at]];
      if (at == 0 || indices[at] != (indices[at - 1] + 1) % 1000) ++blocks;
    }
  }
  EXPECT_NEAR(200'000 / blocks, 20, 1);
  EXPECT_THAT(*std::min_element(seen.begin(), seen.end()), testing::Gt(80)) << "the ends are drawn as often";
}

TEST(StationaryBootstrap, TheSameSeedDrawsTheSame) {
  StationaryBootstrap one(50, 3, 7), same(50, 3, 7), other(50, 3, 8);
  const auto first = one.draw();
  EXPECT_EQ(first, same.draw());
  EXPECT_NE(first, other.draw());
  EXPECT_NE(first, one.draw());
}

TEST(Intervals, LeaveHalfOfTheRestOnEitherSide) {
  std::vector<double> draws;
  for (int i = 1; i <= 1000; ++i) draws.push_back(1001 - i);
  const DiffInterval interval = percentile_interval(draws, 0.9);
  EXPECT_THAT(interval.low, DoubleNear(50, 1));
  EXPECT_THAT(interval.high, DoubleNear(950, 1));
}

TEST(Intervals, HoldForAllAtOnce) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise;
  constexpr std::size_t kCount = 10;
  std::vector<std::vector<double>> draws(kCount);
  for (int i = 0; i < 20'000; ++i) {
    for (std::size_t q = 0; q < kCount; ++q) draws[q].push_back(static_cast<double>(q) * noise(random));
  }
  const std::vector<double> estimates(kCount, 0);
  const auto intervals = joint_intervals(estimates, draws, 0.99);
  EXPECT_EQ(intervals[0].low, 0) << "what never varies";
  EXPECT_EQ(intervals[0].high, 0);
  // The largest of nine normal deviations stays below 3.26 with 99%.
  for (std::size_t q = 1; q < kCount; ++q) EXPECT_NEAR(intervals[q].high / static_cast<double>(q), 3.26, 0.15);
}

}  // namespace
}  // namespace dtrain::analysis::diff
