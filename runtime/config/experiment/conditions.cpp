#include "experiment/conditions.h"

#include <utility>

#include "dtrain/base/text.h"

namespace dtrain::config {

Json is_given(const std::string& path, const Json& schema) {
  const auto dot = path.find('.');
  const std::string key = path.substr(0, dot);
  return {{"required", {key}},
          {"properties", {{key, dot == std::string::npos ? schema : is_given(path.substr(dot + 1), schema)}}}};
}

Json mapping_with(const std::string& path, const Json& schema) {
  Json mapping{{"type", "object"}};
  mapping.update(is_given(path, schema));
  return mapping;
}

Json allows(std::initializer_list<AllowedValue> values) {
  Json mapping;
  for (const AllowedValue& value : values) {
    Json* inside = &mapping;
    for (const std::string& key : split(value.path, '.')) inside = &(*inside)["properties"][key];
    *inside = value.schema;
  }
  return mapping;
}

Json if_then(Json condition, Json then) {
  return {{"if", std::move(condition)}, {"then", std::move(then)}};
}

}  // namespace dtrain::config
