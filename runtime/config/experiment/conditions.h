// Conditions across keys, as JSON Schemas of the mapping that has the keys. The path of a key names it in mappings
// inside: "resources.slot_type". Private to config.
#pragma once

#include <initializer_list>
#include <string>

#include "dtrain/base/json.h"

namespace dtrain::config {

// Returns the condition that a key is given and its value fits the schema.
Json is_given(const std::string& path, const Json& schema);
// Returns the same for a value that is a mapping.
Json mapping_with(const std::string& path, const Json& schema);

struct AllowedValue {
  const char* path;
  Json schema;  // false: the key must not be given
};
// Returns the condition that keys, where they are given, have values that fit their schemas.
Json allows(std::initializer_list<AllowedValue> values);

Json if_then(Json condition, Json then);

}  // namespace dtrain::config
