// All rules of a list, over what a run has recorded. Private to analysis.
#pragma once

#include <tuple>
#include <vector>

#include "dtrain/analysis/rules.h"
#include "dtrain/config/profiling_rules.h"
#include "rules/series.h"

namespace dtrain::analysis::rules {

// Adds to each result its rule's parameters, which `parameters` has under the rule's name.
void add_parameters(std::vector<RuleResult>& results, const Json& parameters);

// The result of each rule, in the list's order.
template <typename... Rules>
std::vector<RuleResult> judge_all(const RuleData& data, std::tuple<Rules...> rules) {
  std::vector<RuleResult> results;
  std::apply([&](const Rules&... each) { (results.push_back(each.judge(data)), ...); }, rules);
  add_parameters(results, config::rules_json([&](config::Keys& keys) { config::declare_rules(keys, rules); }));
  return results;
}

}  // namespace dtrain::analysis::rules
