#include "dtrain/base/json.h"

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain {

std::string to_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json read_json(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    // The library's text opens with its own name and number in brackets.
    std::string reason = error.what();
    if (const auto bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
    throw DataError(path.string() + ": not valid JSON at byte " + std::to_string(error.byte) + ": " + reason);
  }
}

}  // namespace dtrain
