#include "agent/outlier_test.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "dtrain/base/statistics.h"

namespace dtrain::profile {

bool OutlierTest::is_outlier(std::int64_t wall_ns) {
  if (seen_ >= kFewestSteps && seen_ % kRenewalSteps == 0) renew();
  recent_[seen_ % kRecentSteps] = wall_ns;
  ++seen_;
  return threshold_ns_ > 0 && wall_ns > threshold_ns_;
}

void OutlierTest::renew() {
  scratch_.assign(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(std::min(seen_, kRecentSteps)));
  const std::int64_t median = median_high(scratch_);
  for (std::int64_t& value : scratch_) value = std::abs(value - median);
  const std::int64_t deviation = median_high(scratch_);
  threshold_ns_ = median + std::max(kDeviations * deviation, median / kShareOfMedian);
}

}  // namespace dtrain::profile
