// The durations of steps in classic and in robust statistics. A single outlier changes mean and standard deviation, but
// not median and MAD.
#pragma once

#include <cstdint>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct StepStatistics {
  std::int64_t count = 0;
  double mean_s = 0, stddev_s = 0;  // of the population
  double median_s = 0, mad_s = 0;   // median absolute deviation, not scaled
  double min_s = 0, p95_s = 0, p99_s = 0, max_s = 0;
  bool exact = true;  // false: quantiles of folded steps are within 1%
};

Json to_json(const StepStatistics& statistics);

}  // namespace dtrain::analysis
