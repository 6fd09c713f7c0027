#include "loop/unread_keys.h"

#include <vector>

#include "dtrain/base/text.h"

namespace dtrain::train {

std::string describe_unread(std::span<const SectionRead> sections) {
  std::vector<std::string> unread;
  for (const SectionRead& section : sections) {
    std::vector<std::string> missed;
    for (const std::string& key : section.asked) {
      if (!section.given->contains(key)) missed.push_back(key);
    }
    for (const auto& [key, value] : section.given->items()) {
      if (section.asked.contains(key)) continue;
      const auto near = nearest(key, missed);
      unread.push_back(section.name + "." + key + (near ? " (did you mean " + *near + "?)" : ""));
    }
  }
  if (unread.empty()) return {};
  return "the trial has not read " + join(unread, ", ") +
         " by the end of its first batch: a key that it does not read " + "has no effect";
}

}  // namespace dtrain::train
