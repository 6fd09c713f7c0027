#include "dtrain/base/statistics.h"

#include <cmath>
#include <numeric>

namespace dtrain {

double quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto index = static_cast<std::ptrdiff_t>(std::clamp(rank, 1.0, static_cast<double>(values.size()))) - 1;
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[static_cast<std::size_t>(index)];
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median_low(std::vector<double> values) {
  return quantile(values, 0.5);
}

double median_midpoint(std::vector<double> values) {
  const double high = median_high(values);
  if (values.size() % 2 == 1 || values.empty()) return high;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  return (*std::max_element(values.begin(), middle) + high) / 2;
}

}  // namespace dtrain
