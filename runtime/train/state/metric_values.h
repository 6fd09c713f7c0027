// How two values of a metric become one: of batches, and of the ranks of a checkpoint.
#pragma once

#include <algorithm>
#include <cmath>

#include "dtrain/train/metrics.h"

namespace dtrain::train {

// Means are kept as sums.
inline double combined(Reduction reduction, double value, double with) {
  if (reduction == Reduction::kMean || reduction == Reduction::kSum) return value + with;
  if (std::isnan(value) || std::isnan(with)) return std::nan("");
  return reduction == Reduction::kMin ? std::min(value, with) : std::max(value, with);
}

}  // namespace dtrain::train
