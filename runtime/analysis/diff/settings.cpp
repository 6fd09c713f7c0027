#include "dtrain/analysis/run_line.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace dtrain::analysis {
namespace {

// Keys of the plan that are no settings, follow from others or were measured.
constexpr std::array<std::string_view, 19> kNoSettings = {
    "name",          "started_by", "batch_per_rank",  "placement",    "ranks",   "warnings", "overrides",
    "description",   "labels",     "experiment_file", "cluster_file", "command", "text",     "link",
    "replicated_ms", "sharded_ms", "turns",           "steps",        "reason"};
// Results in the plan: of compression and local steps, whose settings are in the experiment, and the machine's limits.
constexpr std::array<std::string_view, 3> kAccounts = {"compression", "local_sgd", "limits"};
// Mappings whose keys users choose; each key is a setting.
constexpr std::array<std::string_view, 2> kFree = {"experiment.hyperparameters", "experiment.data"};
constexpr std::string_view kExperiment = "experiment.";
constexpr std::size_t kLongest = 60;

bool is_setting(const std::string& path, const std::string& key) {
  const auto above = [&](std::string_view free) { return path == free || path.starts_with(std::string(free) + "."); };
  return std::any_of(kFree.begin(), kFree.end(), above) ||
         std::find(kNoSettings.begin(), kNoSettings.end(), key) == kNoSettings.end();
}

void flatten(const Json& value, const std::string& path, Settings& into) {
  if (value.is_object()) {
    for (const auto& [key, below] : value.items()) {
      if (is_setting(path, key)) flatten(below, path.empty() ? key : path + "." + key, into);
    }
    return;
  }
  if (value.is_null()) return;
  const bool is_list = value.is_array() && !value.empty() && value.front().is_object();
  into[path] = is_list ? std::to_string(value.size()) : value.is_string() ? value.get<std::string>() : to_line(value);
}

}  // namespace

Settings settings_of_plan(const Json& plan) {
  Settings result;
  if (!plan.is_object()) return result;
  Json settings = plan;
  for (const std::string_view account : kAccounts) settings.erase(std::string(account));
  flatten(settings, "", result);
  return result;
}

Settings settings_of_experiment(const Json& plan) {
  Settings result;
  if (!plan.is_object() || !plan.contains("experiment")) return result;
  for (const auto& [key, value] : settings_of_plan({{"experiment", plan["experiment"]}})) {
    if (key.starts_with(kExperiment)) result[key.substr(kExperiment.size())] = value;
  }
  return result;
}

std::vector<SettingDifference> differences_of(std::span<const Settings> runs) {
  std::set<std::string> keys;
  for (const Settings& run : runs) {
    for (const auto& [key, value] : run) keys.insert(key);
  }
  std::vector<SettingDifference> result;
  for (const std::string& key : keys) {
    SettingDifference difference{key, {}};
    for (const Settings& run : runs) {
      const auto found = run.find(key);
      difference.values.push_back(found == run.end() ? "-" : found->second);
    }
    const std::string& first = difference.values.front();
    const auto same = [&](const std::string& value) { return value == first; };
    if (!std::all_of(difference.values.begin(), difference.values.end(), same)) result.push_back(std::move(difference));
  }
  std::stable_partition(result.begin(), result.end(),
                        [](const SettingDifference& one) { return one.key.find(".rules.") == std::string::npos; });
  return result;
}

std::string shortened_setting(const std::string& text) {
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not within a character
  return text.substr(0, end) + "…";
}

}  // namespace dtrain::analysis
