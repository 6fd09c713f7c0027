// Statistics over values in memory. Any thread.
#pragma once

#include <algorithm>
#include <vector>

namespace dtrain {

// The smallest value that at least `share` of them do not exceed (nearest rank); 0 of none. Reorders `values`.
double quantile(std::vector<double>& values, double share);
double mean(const std::vector<double>& values);  // 0 of none

// Medians, which differ where the number of values is even: the lower or the upper one of the two in the middle, or the
// mean of these two. 0 of none.
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
