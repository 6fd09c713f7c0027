#include "waiting.h"

#include <gtest/gtest.h>

#include <vector>

namespace dtrain::analysis {
namespace {

using Waits = std::vector<std::vector<ExchangeWait>>;

TEST(Waiting, TheRankThatWaitsLeastCameLast) {
  // In ms. Batch 1: rank 2 came last, the others waited 8 and 4 longer. Batch 2: rank 0.
  const Waits waits = {
      {{1, 9'000'000}, {2, 2'000'000}}, {{1, 5'000'000}, {2, 4'000'000}}, {{1, 1'000'000}, {2, 8'000'000}}};
  const WaitSummary summary = compare_waits(waits);
  EXPECT_EQ(summary.compared_steps, 2);
  EXPECT_EQ(summary.ranks[2].steps, 1);
  EXPECT_DOUBLE_EQ(summary.ranks[2].seconds, (0.008 + 0.004) / 2);
  EXPECT_EQ(summary.ranks[0].steps, 1);
  EXPECT_DOUBLE_EQ(summary.ranks[0].seconds, (0.002 + 0.006) / 2);
  EXPECT_EQ(summary.ranks[1].steps, 0);
  EXPECT_DOUBLE_EQ(summary.skew_seconds, (0.008 + 0.004) / 3 + (0.002 + 0.006) / 3);
}

TEST(Waiting, NobodyWasWaitedForWhereAllWaitedTheSame) {
  const WaitSummary summary = compare_waits(Waits{{{1, 5}}, {{1, 5}}});
  EXPECT_EQ(summary.compared_steps, 1);
  EXPECT_EQ(summary.ranks[0].steps + summary.ranks[1].steps, 0);
  EXPECT_EQ(summary.skew_seconds, 0);
}

TEST(Waiting, StepsThatARankDidNotRecordAreLeftOut) {
  const WaitSummary summary = compare_waits(Waits{{{1, 5}, {2, 5}, {3, 1}}, {{1, 7}, {3, 9}}});
  EXPECT_EQ(summary.compared_steps, 2);
  EXPECT_EQ(summary.ranks[0].steps, 2);
}

TEST(Waiting, ABatchDoneTwiceIsNoSecondRank) {
  EXPECT_EQ(compare_waits(Waits{{{1, 5}, {1, 6}}, {}}).compared_steps, 0);
}

TEST(Waiting, OneRankWaitsForNobody) {
  EXPECT_EQ(compare_waits(Waits{{{1, 5}}}).compared_steps, 0);
  EXPECT_TRUE(compare_waits(Waits{}).ranks.empty());
}

}  // namespace
}  // namespace dtrain::analysis
