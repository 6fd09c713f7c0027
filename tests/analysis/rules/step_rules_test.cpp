// StepOutlier and MaxInitializationTime.
#include <gtest/gtest.h>

#include "findings/judgement.h"
#include "hosts.h"

namespace dtrain::analysis::findings {
namespace {

StepSeries series_of(const std::vector<double>& seconds, bool evaluation = false, int rank = 0) {
  StepSeries series{rank, "node", evaluation, {}, {}};
  std::int64_t batch = 0;
  for (const double one : seconds) series.steps.push_back({++batch, batch * kSecond, one, nullptr});
  return series;
}

RuleData of_steps(std::vector<StepSeries> series) {
  RuleData data;
  data.steps = std::move(series);
  return data;
}

RuleData of_starts(std::vector<InitializationTime> ranks) {
  RuleData data;
  data.initialization = std::move(ranks);
  return data;
}

// 100 steps of 1 and 3 s in turns (mean 2, standard deviation 1), with `more` that keep both in balance.
std::vector<double> balanced(double more) {
  std::vector<double> seconds;
  for (int i = 0; i < 50; ++i) seconds.insert(seconds.end(), {1.0, 3.0});
  if (more > 0) seconds.push_back(more);
  return seconds;
}

void expect_adds_up(const Finding& result) {
  EXPECT_EQ(count(result, "steps"), count(result, "normal") + count(result, "outliers"));
  EXPECT_EQ(count(result, "outliers"), count(result, "ignored_by_n_outliers") + count(result, "triggered"));
  EXPECT_EQ(count(result, "triggered"), result.triggered);
  EXPECT_EQ(count(result, "steps"), result.datapoints);
}

TEST(StepOutlier, IsAStepAboveTheMeanByMoreThanItsStandardDeviations) {
  // mean 2, standard deviation 1: with stddev 1 the threshold is the 3 s of every other step, which is not above it.
  const std::vector<StepSeries> series{series_of(balanced(0))};
  Finding result =
      NamedRule("StepOutlier", {{"stddev", 1.0}, {"n_outliers", 0}, {"mode", nullptr}}).judge(of_steps(series));
  EXPECT_EQ(result.triggered, 0);
  expect_adds_up(result);
  result = NamedRule("StepOutlier", {{"stddev", 0.999}, {"n_outliers", 0}, {"mode", nullptr}}).judge(of_steps(series));
  EXPECT_EQ(result.triggered, 50);
  EXPECT_EQ(count(result, "normal"), 50);
  expect_adds_up(result);
}

TEST(StepOutlier, IgnoresTheFirstOnesOfEachRank) {
  std::vector<double> seconds(200, 1.0);
  for (std::size_t i = 0; i < 4; ++i) seconds[10 * i] = 5;
  const std::vector<StepSeries> series{series_of(seconds, false, 0), series_of(seconds, false, 1)};
  for (const auto& [ignored, triggered] : {std::pair{3, 2}, {4, 0}, {5, 0}, {0, 8}}) {
    const Finding result =
        NamedRule("StepOutlier", {{"stddev", 3.0}, {"n_outliers", ignored}, {"mode", nullptr}}).judge(of_steps(series));
    EXPECT_EQ(count(result, "outliers"), 8);
    EXPECT_EQ(result.triggered, triggered) << ignored;
    expect_adds_up(result);
  }
}

TEST(StepOutlier, LooksAtTheModeItIsAskedFor) {
  std::vector<double> training(100, 1.0);
  training[5] = 9;
  const std::vector<StepSeries> series{series_of(training), series_of(std::vector<double>(20, 30.0), true)};
  const Finding both =
      NamedRule("StepOutlier", {{"stddev", 3.0}, {"n_outliers", 0}, {"mode", nullptr}}).judge(of_steps(series));
  EXPECT_EQ(both.datapoints, 120);
  EXPECT_EQ(both.triggered, 1);  // modes are not compared with each other
  const Finding of_training =
      NamedRule("StepOutlier", {{"stddev", 3.0}, {"n_outliers", 0}, {"mode", "TRAIN"}}).judge(of_steps(series));
  EXPECT_EQ(of_training.datapoints, 100);
  const Finding evaluation =
      NamedRule("StepOutlier", {{"stddev", 3.0}, {"n_outliers", 0}, {"mode", "EVAL"}}).judge(of_steps(series));
  EXPECT_EQ(evaluation.datapoints, 20);
  EXPECT_EQ(evaluation.triggered, 0);
  EXPECT_EQ(evaluation.details["series"][0]["mode"], "EVAL");
}

TEST(StepOutlier, SaysWhichPhaseTookLonger) {
  StepSeries series = series_of(std::vector<double>(100, 1.0));
  profile::PhaseTimes usual{};
  usual[static_cast<std::size_t>(profile::Phase::kForward)] = kSecond;
  profile::PhaseTimes slow = usual;
  slow[static_cast<std::size_t>(profile::Phase::kCheckpoint)] = 2 * kSecond;
  for (Step& step : series.steps) step.phases = &usual;
  series.steps[41].phases = &slow;
  series.steps[41].seconds = 3;
  const Json one = NamedRule("StepOutlier", {{"stddev", 3.0}, {"n_outliers", 0}, {"mode", nullptr}})
                       .judge(of_steps({series}))
                       .details["series"][0];
  ASSERT_EQ(one["outlier_steps"].size(), 1u);
  EXPECT_EQ(one["outlier_steps"][0]["batch"], 42);
  EXPECT_EQ(one["outlier_steps"][0]["phase"], "checkpoint");
  EXPECT_DOUBLE_EQ(one["outlier_steps"][0]["beyond_normal_s"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(one["phases_of_outliers_s"]["checkpoint"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(one["phases_of_normal_steps_s"]["checkpoint"].get<double>(), 0);
}

TEST(StepOutlier, CountsFoldedStepsToo) {
  StepSeries folded = series_of({1, 3});
  folded.folded.push_back({98, 2.0, 98.0, 1.0, 3.0, {{1.0, 49}, {3.0, 49}}});
  const SeriesStatistics statistics = statistics_of(folded);
  EXPECT_EQ(statistics.steps, 100);
  EXPECT_DOUBLE_EQ(statistics.mean_s, 2);
  EXPECT_DOUBLE_EQ(statistics.stddev_s, 1);
  EXPECT_DOUBLE_EQ(statistics.p50_s, 1);
  EXPECT_DOUBLE_EQ(statistics.p99_s, 3);
  EXPECT_DOUBLE_EQ(statistics.mad_s, 0);
  const Finding result =
      NamedRule("StepOutlier", {{"stddev", 0.5}, {"n_outliers", 10}, {"mode", nullptr}}).judge(of_steps({folded}));
  EXPECT_EQ(result.datapoints, 100);
  EXPECT_EQ(count(result, "outliers"), 50);
  EXPECT_EQ(result.details["series"][0]["outliers_in_windows"], 49);
  expect_adds_up(result);
}

TEST(StepOutlier, HistogramHoldsEveryNormalStep) {
  const Json one = NamedRule("StepOutlier", {{"stddev", 3.0}, {"n_outliers", 0}, {"mode", nullptr}})
                       .judge(of_steps({series_of(balanced(20))}))
                       .details["series"][0];
  std::int64_t sum = 0;
  for (const Json& steps : one["histogram"]["steps"]) sum += steps.get<std::int64_t>();
  EXPECT_EQ(sum, 100);
  EXPECT_EQ(one["outliers"], 1);
  EXPECT_EQ(one["histogram"]["steps"].size(), 100u);
}

TEST(StepOutlier, DoesNotApplyWithoutSteps) {
  const Finding result = NamedRule("StepOutlier").judge(of_steps({}));
  EXPECT_FALSE(result.applicable());
  EXPECT_EQ(result.why_not, "no step was recorded");
}

TEST(MaxInitializationTime, IsExceededAboveItsMinutes) {
  const std::vector<InitializationTime> ranks{{0, 1200, true}, {1, 1200.5, true}, {2, 3000, false}, {3, 1, true}};
  const Finding result = NamedRule("MaxInitializationTime", {{"threshold", 20}}).judge(of_starts(ranks));
  EXPECT_EQ(result.triggered, 2);
  EXPECT_EQ(count(result, "ranks"), count(result, "in_time") + count(result, "triggered"));
  EXPECT_EQ(count(result, "never_began_training"), 1);
  EXPECT_EQ(result.details["longest_s"], 3000);
  EXPECT_EQ(NamedRule("MaxInitializationTime", {{"threshold", 20.01}}).judge(of_starts(ranks)).triggered, 1);
  EXPECT_FALSE(NamedRule("MaxInitializationTime", {{"threshold", 20}}).judge(of_starts({})).applicable());
}

}  // namespace
}  // namespace dtrain::analysis::findings
