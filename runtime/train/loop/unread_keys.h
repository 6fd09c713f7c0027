// Finds keys of an experiment that its trial has not asked for: mostly slips, which would otherwise go unnoticed. Plain
// functions.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"

namespace dtrain::train {

struct SectionRead {
  std::string name;             // such as "hyperparameters"
  const Json* given;            // an object
  std::set<std::string> asked;  // keys, given or not
};

// Returns one sentence that names the keys that were given and not asked for. Each comes with the key that differs from
// it by a slip, was asked for and was not given. Empty if there is no such key.
inline std::string describe_unread(std::span<const SectionRead> sections) {
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
         " by the end of its first batch: a key that it does not read has no effect";
}

}  // namespace dtrain::train
