// Statistics over values held in memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/step_statistics.h"

namespace dtrain::analysis {

// The smallest value that at least `share` of them do not exceed (nearest rank); 0 of none. Reorders `values`.
double quantile(std::vector<double>& values, double share);
double mean(const std::vector<double>& values);

// The median; of an even number of values the lower middle one; 0 if there are none.
double median(std::vector<double> values);
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
