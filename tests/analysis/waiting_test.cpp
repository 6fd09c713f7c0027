#include "measure/rows.h"

#include <gtest/gtest.h>

#include <vector>

namespace dtrain::analysis {
namespace {

struct Wait {
  std::int64_t batch, wait_ns;
};
using Waits = std::vector<std::vector<Wait>>;

// Ranks that did nothing but wait in exchanges.
WaitSummary compare_waits(const Waits& waits) {
  RunProfile run;
  for (const auto& of_rank : waits) {
    RankProfile& rank = run.ranks.emplace_back();
    for (const Wait& wait : of_rank) {
      StepLine& step = rank.steps.emplace_back();
      step.batch = wait.batch;
      step.wall_ns = wait.wait_ns;
      step.exchanged = true;
      step.phases[static_cast<std::size_t>(profile::Phase::kAllreduceWait)] = wait.wait_ns;
    }
  }
  return compare_waits(Rows(run));
}

TEST(Waiting, TheRankThatWaitsLeastCameLast) {
  // In ms. Batch 1: rank 2 came last, the others waited 8 and 4 longer. Batch 2: rank 0.
  const Waits waits = {
      {{1, 9'000'000}, {2, 2'000'000}}, {{1, 5'000'000}, {2, 4'000'000}}, {{1, 1'000'000}, {2, 8'000'000}}};
  const WaitSummary summary = compare_waits(waits);
  EXPECT_EQ(summary.compared_steps, 2);
  EXPECT_EQ(summary.ranks[2].steps, 1);
  EXPECT_NEAR(summary.ranks[2].seconds, (0.008 + 0.004) / 2, 1e-12);
  EXPECT_EQ(summary.ranks[0].steps, 1);
  EXPECT_NEAR(summary.ranks[0].seconds, (0.002 + 0.006) / 2, 1e-12);
  EXPECT_EQ(summary.ranks[1].steps, 0);
  EXPECT_NEAR(summary.skew_seconds, (0.008 + 0.004) / 3 + (0.002 + 0.006) / 3, 1e-12);
}

TEST(Waiting, NobodyWasWaitedForWhereAllWaitedTheSame) {
  const WaitSummary summary = compare_waits(Waits{{{1, 5}}, {{1, 5}}});
  EXPECT_EQ(summary.compared_steps, 1);
  EXPECT_EQ(summary.ranks[0].steps + summary.ranks[1].steps, 0);
  EXPECT_NEAR(summary.skew_seconds, 0, 1e-15);
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
