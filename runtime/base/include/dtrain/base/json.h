// The JSON type of the whole project (nlohmann-json). Objects keep the order of their keys.
#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace dtrain {

using Json = nlohmann::ordered_json;

// One line, without a newline at its end. Invalid UTF-8 is replaced and causes no exception.
std::string to_line(const Json& value);

// Reads a file that holds one JSON value. DataError names the file and the offset at which parsing fails.
Json read_json(const std::filesystem::path& path);

}  // namespace dtrain
