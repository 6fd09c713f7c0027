// Finds keys of an experiment that its trial has not asked for: mostly slips, which would otherwise go unnoticed. Plain
// functions.
#pragma once

#include <set>
#include <span>
#include <string>

#include "dtrain/base/json.h"

namespace dtrain::train {

struct SectionRead {
  std::string name;             // such as "hyperparameters"
  const Json* given;            // an object
  std::set<std::string> asked;  // keys, given or not
};

// Returns one sentence that names the keys that were given and not asked for. Each comes with the key that differs from
// it by a slip, was asked for and was not given. Empty if there is no such key.
std::string describe_unread(std::span<const SectionRead> sections);

}  // namespace dtrain::train
