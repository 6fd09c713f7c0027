// Statistics over values held in memory, beside those of base/statistics.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/step_statistics.h"
#include "dtrain/base/statistics.h"

namespace dtrain::analysis {

using WeightedValues = std::vector<std::pair<double, std::int64_t>>;  // a value, and how often it is there
// As quantile(), of rising values that are there `count` times in all.
double weighted_quantile(const WeightedValues& values, std::int64_t count, double share);

// Median absolute deviation from `center`, not scaled.
double mad(std::vector<double> values, double center);
// How many of this many normally distributed values' MADs make their standard deviation.
inline constexpr double kMadToDeviation = 1.4826;

// The median of the slopes of all pairs of points (Theil 1950, Sen 1968): a few wild points do not move it. Points are
// (x, y), ascending by x; of many, 300 spread over them are taken.
struct Trend {
  double slope = 0;
  double rising = 0;  // share of the pairs that rise
};
Trend theil_sen(std::span<const std::pair<double, double>> points);

// Over the steps of these ranks.
StepStatistics step_statistics(std::span<const RankProfile> ranks);

}  // namespace dtrain::analysis
