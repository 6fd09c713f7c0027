#include "dtrain/base/units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace dtrain {
namespace {

std::string format_fixed(double value, int decimals, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f%s", decimals, value, unit);
  return text;
}

// Writes three significant digits: "4.56", "45.6", "456".
std::string three_digits(double value, const char* unit) {
  return format_fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
}

}  // namespace

std::string format_bytes(double bytes) {
  constexpr std::array kUnits{" KiB", " MiB", " GiB", " TiB", " PiB"};
  if (std::abs(bytes) < 1023.5) return format_fixed(bytes, 0, " B");
  double value = bytes / 1024;
  std::size_t unit = 0;
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return format_fixed(value, 1, kUnits[unit]);
}

std::string format_duration(Nanoseconds value) {
  if (value.count() < 0) return "-" + format_duration(-std::max(value, -Nanoseconds::max()));  // min() has no opposite
  const auto count = static_cast<double>(value.count());
  if (value.count() == 0) return "0 s";
  if (count < 999.5) return format_fixed(count, 0, " ns");
  if (count < 999.5e3) return three_digits(count / 1e3, " us");
  if (count < 999.5e6) return three_digits(count / 1e6, " ms");
  if (count < 59.95e9) return three_digits(count / 1e9, " s");
  const auto seconds = std::llround(count / 1e9);
  char text[64];
  if (seconds < 3600) {
    std::snprintf(text, sizeof text, "%lld min %02lld s", seconds / 60, seconds % 60);
  } else {
    const auto minutes = std::llround(count / 60e9);
    std::snprintf(text, sizeof text, "%lld h %02lld min", minutes / 60, minutes % 60);
  }
  return text;
}

std::string format_rate(double per_second) {
  if (!std::isfinite(per_second)) return "-";
  if (std::abs(per_second) < 99.95) return three_digits(per_second, "");
  std::string digits = format_fixed(per_second, 0, "");
  const int first = digits.front() == '-' ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string format_percent(double share) {
  return format_fixed(share * 100, 1, "%");
}

}  // namespace dtrain
