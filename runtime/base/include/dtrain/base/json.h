// The JSON type of the whole project (nlohmann-json), object keys kept in the order they were written.
#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace dtrain {

using Json = nlohmann::ordered_json;

// One line, no newline at its end; invalid UTF-8 is replaced, never thrown at.
std::string to_line(const Json& value);

// A file that holds one JSON value. DataError names the file and the offset of what does not parse.
Json read_json(const std::filesystem::path& path);

}  // namespace dtrain
