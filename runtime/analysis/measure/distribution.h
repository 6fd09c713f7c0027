// Values of steps in full and of folded ones together: quantiles are exact as long as nothing was folded, and within
// profile::Sketch::kRelativeError else.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "dtrain/profile/sketch.h"
#include "measure/statistics.h"

namespace dtrain::analysis {

class Distribution {
 public:
  void add(std::int64_t ns) { values_.push_back(static_cast<double>(ns)); }
  void add(const profile::Sketch& folded) { folded_.merge(folded); }
  // Of nanoseconds, in seconds; 0 of none.
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
