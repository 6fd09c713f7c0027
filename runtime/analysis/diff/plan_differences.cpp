#include "diff/plan_differences.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "dtrain/analysis/settings.h"
#include "dtrain/base/text.h"

namespace dtrain::analysis::diff {
namespace {

constexpr std::array<std::string_view, 2> kWork = {"world_size", "global_batch_size"};

Settings settings(const RunProfile& run) {
  Settings result = settings_of_plan(run.plan);
  result["world_size"] = std::to_string(run.world_size);
  std::set<std::string> hosts;
  for (const RankProfile& rank : run.ranks) hosts.insert(rank.host);
  result["hosts"] = join(std::vector<std::string>(hosts.begin(), hosts.end()), ", ");
  return result;
}

bool is_work(const DiffEntry& entry) {
  return std::find(kWork.begin(), kWork.end(), entry.key) != kWork.end();
}

}  // namespace

std::vector<DiffEntry> plan_differences(const RunProfile& a, const RunProfile& b) {
  std::vector<DiffEntry> result;
  for (const SettingDifference& one : differences_of(std::array{settings(a), settings(b)})) {
    result.push_back({one.key, shortened_setting(one.values[0]), shortened_setting(one.values[1])});
  }
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
