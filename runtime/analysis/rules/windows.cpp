#include "rules/windows.h"

#include <spdlog/fmt/fmt.h>

#include "measure/statistics.h"

namespace dtrain::analysis::rules {

std::vector<std::span<const double>> windows_of(std::span<const double> values, std::int64_t window) {
  std::vector<std::span<const double>> windows;
  const auto size = static_cast<std::size_t>(window);
  for (std::size_t begin = 0; begin + size <= values.size(); begin += size) {
    windows.push_back(values.subspan(begin, size));
  }
  return windows;
}

double quantile_of(std::span<const double> values, double share) {
  std::vector<double> copy(values.begin(), values.end());
  return quantile(copy, share);
}

std::string too_few_points(std::int64_t most, std::int64_t window, const char* of) {
  return fmt::format("a window is {} data points, two a second, and the training has no more than {} of {}", window,
                     most, of);
}

}  // namespace dtrain::analysis::rules
