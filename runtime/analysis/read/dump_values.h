// Values of a parsed line of an untrusted file: a value of another type or an implausible one becomes the fallback.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include <simdjson.h>

#include "read/json_fields.h"

namespace dtrain::analysis {

using Element = simdjson::dom::element;
using Object = simdjson::dom::object;
using Array = simdjson::dom::array;

inline std::int64_t to_integer(const Element& value, std::int64_t fallback = 0) {
  std::int64_t number = 0;
  if (value.get(number) == simdjson::SUCCESS) return std::abs(number) <= kLargestInteger ? number : fallback;
  double real = 0;
  if (value.is_double() && value.get(real) == simdjson::SUCCESS && std::abs(real) <= double(kLargestInteger)) {
    return static_cast<std::int64_t>(real);
  }
  return fallback;
}

inline std::int32_t to_small(const Element& value, std::int32_t fallback = 0) {
  const std::int64_t number = to_integer(value, fallback);
  return number >= INT32_MIN && number <= INT32_MAX ? static_cast<std::int32_t>(number) : fallback;
}

inline double to_double(const Element& value) {
  double number = 0;
  return value.is_number() && value.get(number) == simdjson::SUCCESS ? number : 0;
}

inline std::string_view to_text(const Element& value) {
  std::string_view text;
  return value.get(text) == simdjson::SUCCESS ? text : std::string_view();
}

inline bool to_bool(const Element& value) {
  bool truth = false;
  return value.get(truth) == simdjson::SUCCESS && truth;
}

}  // namespace dtrain::analysis
