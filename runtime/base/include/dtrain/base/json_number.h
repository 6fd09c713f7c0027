// Numbers in dtrain's JSON files. JSON has no NaN and no infinity, so the texts "nan", "inf" and "-inf" stand for them.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "dtrain/base/json.h"

namespace dtrain {

// Returns "nan", "inf" or "-inf" for a value that is not finite.
inline std::string non_finite_text(double value) {
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

inline Json number_or_text(double value) {
  return std::isfinite(value) ? Json(value) : Json(non_finite_text(value));
}

// Empty: the value is neither a number nor one of these texts.
inline std::optional<double> number_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_string()) return std::nullopt;
  const auto& text = json.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

inline Json numbers_or_texts(const std::map<std::string, double>& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = number_or_text(value);
  return json;
}

}  // namespace dtrain
