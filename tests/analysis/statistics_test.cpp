#include "measure/statistics.h"

#include <gtest/gtest.h>

#include "synthetic.h"

namespace dtrain::analysis {
namespace {

TEST(Statistics, OneOutlierMovesTheMeanAndNotTheMedian) {
  std::vector<double> values = {1, 2, 3, 4, 1000};
  EXPECT_EQ(mean(values), 202);
  EXPECT_EQ(median_low(values), 3);
  EXPECT_EQ(mad(values, 3), 1);
  EXPECT_EQ(quantile(values, 0.95), 1000);
  EXPECT_EQ(median_low({}), 0);
}

TEST(Statistics, TheSlopeOfMostPairsStandsAgainstWildPoints) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 1'000; ++i) points.emplace_back(i, i % 10 == 0 ? -1e6 : 3.0 * i);
  const Trend trend = theil_sen(points);
  EXPECT_NEAR(trend.slope, 3, 0.1);
  EXPECT_EQ(theil_sen({}).slope, 0);
}

TEST(Statistics, FoldedStepsCountExactly) {
  test::SyntheticRun plan;
  plan.steps = 2'000;
  plan.noise = 0.1;
  const StepStatistics whole = Synthetic(plan).analysis.steps;
  plan.detail_steps = 400;
  const StepStatistics folded = Synthetic(plan).analysis.steps;
  EXPECT_TRUE(whole.exact);
  EXPECT_FALSE(folded.exact);
  EXPECT_EQ(folded.count, 4'000);
  EXPECT_NEAR(folded.mean_s, whole.mean_s, 1e-12);
  EXPECT_NEAR(folded.stddev_s, whole.stddev_s, 1e-6 * whole.stddev_s);
  EXPECT_DOUBLE_EQ(folded.min_s, whole.min_s);
  EXPECT_DOUBLE_EQ(folded.max_s, whole.max_s);
  EXPECT_NEAR(folded.median_s, whole.median_s, 0.011 * whole.median_s);
  EXPECT_NEAR(folded.p99_s, whole.p99_s, 0.011 * whole.p99_s);
  EXPECT_NEAR(folded.mad_s, whole.mad_s, 0.02 * whole.median_s);
}

}  // namespace
}  // namespace dtrain::analysis
