// A YAML document as a tree with positions, from which the typed reading starts. Private to config, plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/json.h"

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

// The meaning of a plain YAML scalar by the core schema of YAML 1.2, and where YAML 1.1 says something else.
enum class NumberError { kNotANumber, kOutOfRange };

template <typename T>
struct Parsed {
  std::optional<T> value;
  NumberError error = NumberError::kNotANumber;
};

std::optional<bool> as_boolean(const Value& value);
// Reads decimal, 0x hexadecimal or 0o octal digits. No number: decimal digits that YAML 1.1 takes for octal (`017`).
Parsed<std::int64_t> as_integer(const Value& value);
// Reads a finite number. `.inf` and `.nan` are out of range.
Parsed<double> as_number(const Value& value);
// Describes a value without a type of its own whose reader may expect YAML 1.1 (PyYAML, Determined): both meanings and
// the remedy, if the two differ in whether the value is text or in the number. Empty: they agree, or the value is a
// number whose exponent PyYAML does not read (`1e-3`), or a date (text).
std::string two_meanings(const Value& value);

// Returns JSON as a tree of values, to be read as a file is.
Value value_of(const Json& json);

// Splits a command line into words as a shell does it: quotes and backslashes, no expansion. Empty: a quote is not
// closed.
std::optional<std::vector<std::string>> split_words(std::string_view text);

}  // namespace dtrain::config
