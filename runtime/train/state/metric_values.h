// Combines values of a metric, in the loop and when a checkpoint is read by another number of ranks.
#pragma once

#include <algorithm>
#include <cmath>

#include "dtrain/train/metrics.h"

namespace dtrain::train {

// Combines two values of a metric; means are sums here. nan if one of the values is nan.
inline double combined(Reduction reduction, double value, double with) {
  if (reduction == Reduction::kMean || reduction == Reduction::kSum) return value + with;
  if (std::isnan(value) || std::isnan(with)) return std::nan("");
  return reduction == Reduction::kMin ? std::min(value, with) : std::max(value, with);
}

}  // namespace dtrain::train
