// The settings of runs as text, and in which of them runs differ. Plain functions; any thread.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

// Values by their keys; nested keys are joined by dots. A key whose value is null counts as missing.
using Settings = std::map<std::string, std::string>;

// The settings in plan.json, without values that follow from others or were measured.
Settings settings_of_plan(const Json& plan);
// The settings of the experiment in plan.json: "optimizer.lr".
Settings settings_of_experiment(const Json& plan);

struct SettingDifference {
  std::string key;
  std::vector<std::string> values;  // one for each run; "-": the run does not have it
};
// The settings in which any of the runs differ, by key; those of rules last.
std::vector<SettingDifference> differences_of(std::span<const Settings> runs);

// Shortened for a table: "a very long …".
std::string shortened_setting(const std::string& text);

}  // namespace dtrain::analysis
