#include "document/from_json.h"

namespace dtrain::config {

Value value_of(const Json& json) {
  Value value;
  if (json.is_object()) {
    value.kind = Value::Kind::kMap;
    for (const auto& [key, inside] : json.items()) value.entries.push_back({key, {}, value_of(inside)});
  } else if (json.is_array()) {
    value.kind = Value::Kind::kList;
    for (const Json& item : json) value.items.push_back(value_of(item));
  } else if (!json.is_null()) {
    value.kind = Value::Kind::kScalar;
    value.quoted = json.is_string();
    value.text = value.quoted ? json.get<std::string>() : json.dump();
  }
  return value;
}

}  // namespace dtrain::config
