// What a plain YAML scalar means (the core schema of YAML 1.2: `yes` and `1_000` are text). Private to config.
#pragma once

#include <cstdint>
#include <optional>

#include "document/value.h"

namespace dtrain::config {

enum class NumberError { kNotANumber, kOutOfRange };

template <typename T>
struct Parsed {
  std::optional<T> value;
  NumberError error = NumberError::kNotANumber;
};

std::optional<bool> as_boolean(const Value& value);
// Decimal, 0x hexadecimal or 0o octal.
Parsed<std::int64_t> as_integer(const Value& value);
// Finite. `.inf` and `.nan` are out of range.
Parsed<double> as_number(const Value& value);

}  // namespace dtrain::config
