// Values of a JSON object from an untrusted file: a value that is missing, of another type or implausible becomes the
// fallback.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"

namespace dtrain::analysis {

// The largest integer, so that sums and differences of a few stay within 64 bits: 36 years in nanoseconds.
inline constexpr std::int64_t kLargestInteger = std::int64_t{1} << 60;

// The largest number of ranks: more is damage, and must not cause a million warnings.
inline constexpr std::int64_t kLargestWorld = std::int64_t{1} << 20;

inline std::int64_t integer(const Json& object, const std::string& key, std::int64_t fallback = 0) {
  const auto value = object.find(key);
  if (value == object.end() || !value->is_number()) return fallback;
  const bool reasonable = std::abs(value->get<double>()) <= static_cast<double>(kLargestInteger);
  return reasonable ? value->get<std::int64_t>() : fallback;
}

inline double number(const Json& object, const std::string& key) {
  return value_at<double>(object, key).value_or(0);
}

inline std::string text(const Json& object, const std::string& key) {
  return text_at(object, key);
}

// Returns the member if it is an object, else null.
inline const Json* find_object(const Json& object, const std::string& key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_object() ? &*value : nullptr;
}

// Returns the time of an event or a metric, "2026-03-01T12:34:56.789012Z", in seconds since 1970; 0 for other text.
inline double seconds_of_utc(const std::string& text) {
  std::tm time{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (rest == nullptr) return 0;
  const double fraction = *rest == '.' ? std::atof(rest) : 0;
  return static_cast<double>(::timegm(&time)) + fraction;
}

}  // namespace dtrain::analysis
