#include "document/value.h"

#include <algorithm>
#include <utility>

namespace dtrain::config {

const Entry* Value::find(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

Entry* Value::find(std::string_view key) {
  return const_cast<Entry*>(std::as_const(*this).find(key));
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return "nothing";
    case Value::Kind::kList:
      return value.items.empty() ? "an empty list" : "a list";
    case Value::Kind::kMap:
      return value.entries.empty() ? "an empty mapping" : "a mapping";
    case Value::Kind::kScalar:
      break;
  }
  return quote(value.text) + (value.quoted ? " (quoted, so text)" : "");
}

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string shown(text.substr(0, kLongest));
  if (text.size() > kLongest) {
    // The text must not end in the middle of a character of several bytes.
    while (!shown.empty() && (static_cast<unsigned char>(text[shown.size()]) & 0xC0) == 0x80) shown.pop_back();
    shown += "...";
  }
  for (char& letter : shown) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) letter = '?';
  }
  return "'" + shown + "'";
}

}  // namespace dtrain::config
