#include "document/scalar.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

namespace dtrain::config {

std::optional<bool> as_boolean(const Value& value) {
  if (!value.is_scalar() || value.quoted) return std::nullopt;
  if (value.text == "true" || value.text == "True" || value.text == "TRUE") return true;
  if (value.text == "false" || value.text == "False" || value.text == "FALSE") return false;
  return std::nullopt;
}

Parsed<std::int64_t> as_integer(const Value& value) {
  if (!value.is_scalar() || value.quoted) return {};
  std::string_view text = value.text;
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0o")) {
    base = text[1] == 'x' ? 16 : 8;
    text.remove_prefix(2);
    if (text.starts_with('-')) return {};
  } else if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  std::int64_t result = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result, base);
  if (text.empty() || end != text.data() + text.size()) return {};
  if (code == std::errc::result_out_of_range) return {std::nullopt, NumberError::kOutOfRange};
  if (code != std::errc()) return {};
  return {result};
}

Parsed<double> as_number(const Value& value) {
  if (!value.is_scalar() || value.quoted) return {};
  std::string_view text = value.text;
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::string_view unsigned_text = text;
  if (unsigned_text.starts_with('-')) unsigned_text.remove_prefix(1);
  for (const char* name : {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"}) {
    if (unsigned_text == name) return {std::nullopt, NumberError::kOutOfRange};
  }
  // "inf" and "nan" are words in YAML.
  if (unsigned_text.empty() || unsigned_text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return {};
  double result = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (end != text.data() + text.size()) return {};
  if (code == std::errc::result_out_of_range) return {std::nullopt, NumberError::kOutOfRange};
  if (code != std::errc()) return {};
  return {result};
}

}  // namespace dtrain::config
