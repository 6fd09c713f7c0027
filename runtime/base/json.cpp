#include "dtrain/base/json.h"

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/untrusted.h"

namespace dtrain {
namespace {

// Larger ones are no description of anything: the plan of 10,000 ranks takes 4 MB.
constexpr std::size_t kLargestFile = std::size_t{64} << 20;

}  // namespace

std::string to_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json read_json(const std::filesystem::path& path) {
  try {
    return parse_untrusted(read_file(path, kLargestFile));
  } catch (const JsonError& error) {
    throw DataError(path.string() + ": " + error.what());
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
