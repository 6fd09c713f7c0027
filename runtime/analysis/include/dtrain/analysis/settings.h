// The settings of runs as text, and in which of them runs differ. Plain functions; any thread.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

// Values by their keys; those of nested keys are joined by dots. A key that is null is as if it were not there.
using Settings = std::map<std::string, std::string>;

// Of plan.json, without what is no setting, follows from others or was measured.
Settings settings_of_plan(const Json& plan);
// Of the experiment in plan.json: "optimizer.lr".
Settings settings_of_experiment(const Json& plan);

struct SettingDifference {
  std::string key;
  std::vector<std::string> values;  // one a run; "-": the run does not have it
};
// The settings in which any of the runs differ, by key; those of rules last.
std::vector<SettingDifference> differences_of(std::span<const Settings> runs);

// As long as a table has room for: "a very long …".
std::string shortened_setting(const std::string& text);

}  // namespace dtrain::analysis
