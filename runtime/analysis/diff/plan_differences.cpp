#include "diff/plan_differences.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "dtrain/base/text.h"

namespace dtrain::analysis::diff {
namespace {

using Settings = std::map<std::string, std::string>;

constexpr std::array<std::string_view, 2> kWork = {"world_size", "global_batch_size"};
// Of the plan: what is no setting, follows from others or was measured.
constexpr std::array<std::string_view, 19> kNoSettings = {
    "name",          "started_by", "batch_per_rank",  "placement",    "ranks",   "warnings", "overrides",
    "description",   "labels",     "experiment_file", "cluster_file", "command", "text",     "link",
    "replicated_ms", "sharded_ms", "turns",           "steps",        "reason"};
// What compression has done in this run; how it was to be done is in the experiment. What was measured of the machine.
constexpr std::array<std::string_view, 3> kAccounts = {"compression", "local_sgd", "limits"};
constexpr std::size_t kLongest = 60;

bool is_setting(const std::string& key) {
  return std::find(kNoSettings.begin(), kNoSettings.end(), key) == kNoSettings.end();
}

void flatten(const Json& value, const std::string& path, Settings& into) {
  if (value.is_object()) {
    for (const auto& [key, below] : value.items()) {
      if (is_setting(key)) flatten(below, path.empty() ? key : path + "." + key, into);
    }
    return;
  }
  if (value.is_null()) return;  // as if it were not there
  const bool is_list = value.is_array() && !value.empty() && value.front().is_object();
  into[path] = is_list ? std::to_string(value.size()) : value.is_string() ? value.get<std::string>() : to_line(value);
}

Settings settings(const RunProfile& run) {
  Settings result;
  if (run.plan.is_object()) {
    Json plan = run.plan;
    for (const std::string_view account : kAccounts) plan.erase(std::string(account));
    flatten(plan, "", result);
  }
  result["world_size"] = std::to_string(run.world_size);
  std::set<std::string> hosts;
  for (const RankProfile& rank : run.ranks) hosts.insert(rank.host);
  result["hosts"] = join(std::vector<std::string>(hosts.begin(), hosts.end()), ", ");
  return result;
}

std::string cut_setting(const std::string& text) {
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not within a character
  return text.substr(0, end) + "…";
}

bool is_work(const DiffEntry& entry) {
  return std::find(kWork.begin(), kWork.end(), entry.key) != kWork.end();
}

}  // namespace

std::vector<DiffEntry> plan_differences(const RunProfile& a, const RunProfile& b) {
  const Settings in_a = settings(a), in_b = settings(b);
  Settings keys = in_a;
  keys.insert(in_b.begin(), in_b.end());
  std::vector<DiffEntry> result;
  for (const auto& setting : keys) {
    const std::string& key = setting.first;
    const auto of = [&](const Settings& run) {
      const auto found = run.find(key);
      return found == run.end() ? std::string("-") : found->second;
    };
    const std::string a_value = of(in_a), b_value = of(in_b);
    if (a_value != b_value) result.push_back({key, cut_setting(a_value), cut_setting(b_value)});
  }
  std::stable_partition(result.begin(), result.end(),
                        [](const DiffEntry& entry) { return entry.key.find(".rules.") == std::string::npos; });
  std::stable_partition(result.begin(), result.end(), is_work);
  return result;
}

std::string other_work(const std::vector<DiffEntry>& differences) {
  std::vector<std::string> parts;
  for (const DiffEntry& entry : differences) {
    // Without a plan there is nothing to compare.
    if (is_work(entry) && entry.a != "-" && entry.b != "-")
      parts.push_back(entry.key + " " + entry.a + " and " + entry.b);
  }
  return join(parts, "; ");
}

}  // namespace dtrain::analysis::diff
