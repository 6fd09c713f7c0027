// The JSON type of the whole project (nlohmann-json). Objects keep the order of their keys.
#pragma once

#include <concepts>
#include <filesystem>
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

}  // namespace dtrain
