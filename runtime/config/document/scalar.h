// The meaning of a plain YAML scalar by the core schema of YAML 1.2, and where YAML 1.1 says something else. Private to
// config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "document/value.h"

namespace dtrain::config {

enum class NumberError { kNotANumber, kOutOfRange };

template <typename T>
struct Parsed {
  std::optional<T> value;
  NumberError error = NumberError::kNotANumber;
};

std::optional<bool> as_boolean(const Value& value);
// Reads decimal, 0x hexadecimal or 0o octal digits. No number: decimal digits that YAML 1.1 takes for octal (`017`).
Parsed<std::int64_t> as_integer(const Value& value);
// Reads a finite number. `.inf` and `.nan` are out of range.
Parsed<double> as_number(const Value& value);
// Describes a value without a type of its own whose reader may expect YAML 1.1 (PyYAML, Determined): both meanings and
// the remedy, if the two differ in whether the value is text or in the number. Empty: they agree, or the value is a
// number whose exponent PyYAML does not read (`1e-3`), or a date (text).
std::string two_meanings(const Value& value);

}  // namespace dtrain::config
