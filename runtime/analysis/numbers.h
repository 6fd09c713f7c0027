// Numbers as people read them.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "dtrain/base/units.h"

namespace dtrain::analysis {

inline std::string seconds_text(double seconds) {
  return format_duration(Nanoseconds(std::llround(seconds * 1e9)));
}

// "1,234,567"
inline std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::ptrdiff_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

}  // namespace dtrain::analysis
