// A YAML document as a tree with positions, from which the typed reading starts. Private to config, plain values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dtrain::config {

struct Location {
  int line = 0;              // from 1; of an override, its number on the command line
  bool in_override = false;  // given with --set, not in the file
};

struct Entry;

struct Value {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  bool quoted = false;  // a scalar in quotes, or a block: text, whatever it looks like
  Location at;
  std::string text;            // of a scalar
  std::vector<Value> items;    // of a list
  std::vector<Entry> entries;  // of a map, in the order of the file, duplicates included

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_map() const { return kind == Kind::kMap; }
  // Returns the first entry of that key, or nullptr.
  const Entry* find(std::string_view key) const;
  Entry* find(std::string_view key);
};

struct Entry {
  std::string key;
  Location at;
  Value value;
};

// Returns a text for messages: "'abc'", "a list", "nothing".
std::string describe(const Value& value);
// Quotes any text for messages: shortened, control characters shown as '?'.
std::string quote(std::string_view text);

}  // namespace dtrain::config
