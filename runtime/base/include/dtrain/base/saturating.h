// Sums of numbers from untrusted files: they stay at the largest or smallest value instead of overflowing.
#pragma once

#include <cstdint>

namespace dtrain {

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
