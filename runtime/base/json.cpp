#include "dtrain/base/json.h"

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain {
namespace {

std::string reason_of(const Json::exception& error) {
  std::string reason = error.what();  // opens with the library's name and a number in brackets
  if (const auto bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
  return reason;
}

}  // namespace

std::string to_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json read_json(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw DataError(path.string() + ": not valid JSON at byte " + std::to_string(error.byte) + ": " + reason_of(error));
  } catch (const Json::exception& error) {
    throw DataError(path.string() + ": not valid JSON: " + reason_of(error));
  }
}

const Json& object_at(const Json& value, const std::string& key) {
  static const Json kNone = Json::object();
  const auto found = value.find(key);
  return found != value.end() && found->is_object() ? *found : kNone;
}

const Json& list_at(const Json& value, const std::string& key) {
  static const Json kNone = Json::array();
  const auto found = value.find(key);
  return found != value.end() && found->is_array() ? *found : kNone;
}

std::string text_at(const Json& value, const std::string& key) {
  return value_at<std::string>(value, key).value_or("");
}

}  // namespace dtrain
