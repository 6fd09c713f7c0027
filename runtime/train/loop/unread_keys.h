// Keys of an experiment that its trial has not asked for: slips, as a rule, which would otherwise go unnoticed. Plain
// functions.
#pragma once

#include <set>
#include <span>
#include <string>

#include "dtrain/base/json.h"

namespace dtrain::train {

struct SectionRead {
  std::string name;             // "hyperparameters"
  const Json* given;            // an object
  std::set<std::string> asked;  // also those that are not given
};

// One sentence that names the keys that were given and not asked for, each with the key that was asked for, not given,
// and differs from it by a slip. Empty where there is no such key.
std::string describe_unread(std::span<const SectionRead> sections);

}  // namespace dtrain::train
