// Statistics over the steps of a series, those that are folded into distributions included. Private to analysis.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/series.h"

namespace dtrain::analysis::rules {

struct SeriesStatistics {
  std::int64_t steps = 0;
  double mean_s = 0, stddev_s = 0;  // of all steps (population); exact with folded steps too
  double min_s = 0, max_s = 0;      // exact
  double median_s = 0, mad_s = 0;   // median, and median of the absolute deviations from it
  double p50_s = 0, p95_s = 0, p99_s = 0;
};

SeriesStatistics statistics_of(const StepSeries& series);

// Steps whose duration is above `threshold_s`, of those that are folded.
std::int64_t folded_above(const StepSeries& series, double threshold_s);

// How many steps last at most `threshold_s` and fall into each of `bins` equal parts between `from_s` and `to_s`; what
// lies beyond counts in the first or last.
std::vector<std::int64_t> histogram_of(const StepSeries& series, double threshold_s, double from_s, double to_s,
                                       std::size_t bins);

}  // namespace dtrain::analysis::rules
