// Writes numbers for people.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "dtrain/base/units.h"

namespace dtrain::analysis {

inline std::string seconds_text(double seconds) {
  constexpr double kMost = 9e9;  // seconds, 285 years; nanoseconds beyond do not fit
  if (std::isnan(seconds)) return "-";
  return format_duration(Nanoseconds(std::llround(std::clamp(seconds, -kMost, kMost) * 1e9)));
}

// Converts an estimated count.
inline std::int64_t to_count(double value) {
  constexpr double kMost = 9e15;  // whole numbers up to here are exact
  return std::isnan(value) ? 0 : std::llround(std::clamp(value, -kMost, kMost));
}

// "1,234,567"
inline std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::ptrdiff_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

// "1 rank", "1,234 ranks"
inline std::string count_text(std::int64_t count, std::string_view word) {
  return count_text(count) + " " + (count == 1 ? std::string(word) : plural(word));
}

// Returns the value with three digits and a decimal prefix: "82.1 GFLOP/s" of 8.21e10 and "FLOP/s".
inline std::string amount_text(double value, const std::string& unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  for (; value >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  return fmt::format("{:.{}f} {}{}", value,
                     value >= 99.95 || prefix == 0 ? 0
                     : value >= 9.995              ? 1
                                                   : 2,
                     kPrefixes[prefix], unit);
}

}  // namespace dtrain::analysis
