// Statistics over values held in memory, beside those of base/numeric.h.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/numeric.h"
#include "dtrain/profile/sketch.h"

namespace dtrain::analysis {

using WeightedValues = std::vector<std::pair<double, std::int64_t>>;  // a value, and how often it is there
// Returns a quantile, as quantile() does, of rising values with `count` occurrences in all.
double weighted_quantile(const WeightedValues& values, std::int64_t count, double share);

// Returns the median absolute deviation (MAD) from `center`, not scaled.
double mad(std::vector<double> values, double center);
// The standard deviation of a normal distribution over its MAD.
inline constexpr double kMadToDeviation = 1.4826;

// The median of the slopes of all pairs of points (Theil 1950, Sen 1968), which a few outliers do not move. Points are
// (x, y), ascending by x; of more than 300, only 300 that are spread evenly count.
struct Trend {
  double slope = 0;
  double rising = 0;  // share of the pairs that rise
};
Trend theil_sen(std::span<const std::pair<double, double>> points);

StepStatistics step_statistics(std::span<const RankProfile> ranks);

// Values of steps in full and of folded steps. Quantiles are exact if nothing was folded, and otherwise within
// profile::Sketch::kRelativeError.
class Distribution {
 public:
  void add(std::int64_t ns) { values_.push_back(static_cast<double>(ns)); }
  void add(const profile::Sketch& folded) { folded_.merge(folded); }
  // Returns a quantile in seconds; the values are nanoseconds. 0: there is no value.
  double quantile_s(double share) {
    if (folded_.count() == 0) return quantile(values_, share) / 1e9;
    for (const double value : values_) folded_.add(static_cast<std::int64_t>(value));
    values_.clear();
    return folded_.quantile(share) / 1e9;
  }

 private:
  std::vector<double> values_;
  profile::Sketch folded_;
};

}  // namespace dtrain::analysis
