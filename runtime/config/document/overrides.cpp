#include "document/overrides.h"

#include <algorithm>

#include "document/yaml_document.h"
#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

Entry& find_or_add(Value& map, const std::string& key, Location at) {
  if (Entry* entry = map.find(key)) return *entry;
  map.entries.push_back({key, at, Value{Value::Kind::kNull, false, at, {}, {}, {}}});
  return map.entries.back();
}

void apply(const std::string& override_text, Location at, Value& root, Collector& collector,
           std::span<const std::string> lengths) {
  const auto equals = override_text.find('=');
  const std::string path = override_text.substr(0, equals);
  const std::vector<std::string> keys = split(path, '.');
  const bool has_empty_key = std::any_of(keys.begin(), keys.end(), [](const auto& key) { return key.empty(); });
  if (equals == std::string::npos || has_empty_key) {
    collector.add(at, "", quote(override_text) + " is not of the form key=value or section.key=value");
    return;
  }
  std::optional<Value> value = parse_yaml(override_text.substr(equals + 1), collector, at, path);
  if (!value) return;

  Value* map = &root;
  std::string section;
  for (std::size_t level = 0; level < keys.size(); ++level) {
    if (map->is_null()) {
      map->kind = Value::Kind::kMap;
      map->at = at;
    }
    if (!map->is_map()) {
      collector.add(at, path, "cannot be set: '" + section + "' is " + describe(*map) + ", not a mapping");
      return;
    }
    const bool last = level + 1 == keys.size();
    if (last && std::find(lengths.begin(), lengths.end(), section) != lengths.end()) map->entries.clear();
    Entry& entry = find_or_add(*map, keys[level], at);
    section = join_path(section, keys[level]);
    map = &entry.value;
    if (last) entry.at = at;
  }
  *map = std::move(*value);
}

}  // namespace

void apply_overrides(std::span<const std::string> overrides, Value& root, Collector& collector,
                     std::span<const std::string> lengths) {
  int number = 0;
  for (const std::string& text : overrides) apply(text, Location{++number, true}, root, collector, lengths);
}

}  // namespace dtrain::config
