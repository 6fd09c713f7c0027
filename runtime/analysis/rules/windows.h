// Windows of data points: quantiles over so many of them in a row. Private to analysis.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dtrain::analysis::rules {

// One window after the other from the first point on; what is left at the end is no window.
std::vector<std::span<const double>> windows_of(std::span<const double> values, std::int64_t window);

// statistics.h's, of values that stay as they are.
double quantile_of(std::span<const double> values, double share);

// Why a rule that judges windows has none.
std::string too_few_points(std::int64_t most, std::int64_t window, const char* of = "a GPU");

}  // namespace dtrain::analysis::rules
