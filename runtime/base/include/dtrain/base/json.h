// The JSON type of the whole project (nlohmann-json). Objects keep the order of their keys.
#pragma once

#include <cmath>
#include <concepts>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>

#include <nlohmann/json.hpp>

namespace dtrain {

using Json = nlohmann::ordered_json;

// Returns the value as one line, without a newline at its end. Invalid UTF-8 is replaced and causes no exception.
std::string to_line(const Json& value);

// Reads a file that holds one JSON value. DataError names the file and the offset at which parsing fails.
Json read_json(const std::filesystem::path& path);

// Return members of a value from an untrusted file. If the value is no object, or has no such member of this type, the
// result is empty.
const Json& object_at(const Json& value, const std::string& key);
const Json& list_at(const Json& value, const std::string& key);
template <typename T>  // the result would be a part of a temporary value
const Json& object_at(const T& value, const std::string& key) = delete;
template <typename T>
const Json& list_at(const T& value, const std::string& key) = delete;
std::string text_at(const Json& value, const std::string& key);
template <typename T>
requires std::is_arithmetic_v<T> || std::same_as<T, std::string> std::optional<T> value_at(const Json& value,
                                                                                           const std::string& key) {
  const auto found = value.find(key);
  if (found == value.end()) return std::nullopt;
  const bool fits = std::same_as<T, bool>          ? found->is_boolean()
                    : std::same_as<T, std::string> ? found->is_string()
                    : std::integral<T>             ? found->is_number_integer()
                                                   : found->is_number();
  return fits ? std::optional(found->template get<T>()) : std::nullopt;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// Numbers in dtrain's JSON files. JSON has no NaN and no infinity, so the texts "nan", "inf" and "-inf" stand for them.
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
