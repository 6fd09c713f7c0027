// Statistics over values in memory. Any thread.
#pragma once

#include <algorithm>
#include <vector>

namespace dtrain {

// Returns the smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank); 0 if there are
// none. Reorders `values`.
double quantile(std::vector<double>& values, double share);
double mean(const std::vector<double>& values);  // 0 if there are none

// Medians. For an even number of values they return the lower one of the two in the middle, the mean of these two, and
// the upper one. 0 if there are none.
double median_low(std::vector<double> values);
double median_midpoint(std::vector<double> values);
// Reorders `values`.
template <typename T>
T median_high(std::vector<T>& values) {
  if (values.empty()) return T{};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace dtrain
