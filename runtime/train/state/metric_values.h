// How values of a metric become one: in the loop, and where a checkpoint is read by another number of ranks.
#pragma once

#include <algorithm>
#include <cmath>

#include "dtrain/train/metrics.h"

namespace dtrain::train {

// Two values of a metric, of which means are sums here, as one. nan if one of them is.
inline double combined(Reduction reduction, double value, double with) {
  if (reduction == Reduction::kMean || reduction == Reduction::kSum) return value + with;
  if (std::isnan(value) || std::isnan(with)) return std::nan("");
  return reduction == Reduction::kMin ? std::min(value, with) : std::max(value, with);
}

}  // namespace dtrain::train
