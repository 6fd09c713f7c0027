// Statistics over values in memory, and sums that do not overflow. Any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace dtrain {

// Returns the smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank); 0 if there are
// none. Reorders `values`.
inline double quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto index = static_cast<std::ptrdiff_t>(std::clamp(rank, 1.0, static_cast<double>(values.size()))) - 1;
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[static_cast<std::size_t>(index)];
}

// 0 if there are none.
inline double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Medians. For an even number of values they return the lower one of the two in the middle, the upper one, and the mean
// of these two. 0 if there are none.
inline double median_low(std::vector<double> values) {
  return quantile(values, 0.5);
}
// Reorders `values`.
template <typename T>
T median_high(std::vector<T>& values) {
  if (values.empty()) return T{};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}
inline double median_midpoint(std::vector<double> values) {
  const double high = median_high(values);
  if (values.size() % 2 == 1 || values.empty()) return high;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  return (*std::max_element(values.begin(), middle) + high) / 2;
}

// Sums of numbers from untrusted files: they stay at the largest or smallest value instead of overflowing.
inline void add_to(std::int64_t& total, std::int64_t value) {
  if (__builtin_add_overflow(total, value, &total)) total = value > 0 ? INT64_MAX : INT64_MIN;
}

inline std::int64_t plus(std::int64_t a, std::int64_t b) {
  add_to(a, b);
  return a;
}

inline std::int64_t minus(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (!__builtin_sub_overflow(a, b, &result)) return result;
  return a > b ? INT64_MAX : INT64_MIN;
}

}  // namespace dtrain
