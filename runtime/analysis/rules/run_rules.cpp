#include <map>
#include <string>

#include "dtrain/analysis/rules.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/config/profiling.h"
#include "rules/rule.h"
#include "rules/run_rules.h"

namespace dtrain::analysis {

std::vector<RuleResult> rules::RuleSet::judge(const RuleData& data) const {
  std::vector<RuleResult> results;
  for (const auto& rule : rules_) results.push_back(rule->judge(data));
  const std::unique_ptr<config::RuleParameters> shown = clone();
  const Json parameters = config::rules_json([&](config::Keys& keys) { shown->declare_keys(keys); });
  for (RuleResult& result : results) {
    if (const auto own = parameters.find(result.name); own != parameters.end()) result.parameters = *own;
  }
  return results;
}

std::vector<std::string> changed_gpu_rules(const config::ProfilingRules& rules) {
  const Json values = config::to_json(rules), defaults = config::to_json(config::ProfilingRules());
  std::vector<std::string> names;
  for (const auto& rule : rules::all_rules()) {
    const char* const name = rule->name();
    if (rule->gpus_only() && rule->has_settings() && values.at(name) != defaults.at(name)) names.emplace_back(name);
  }
  return names;
}

config::ProfilingRules rules_of(const RunProfile& profile) {
  const Json& profiling = object_at(profile.experiment, "profiling");
  const auto rules = profiling.find("rules");
  return rules == profiling.end() ? config::ProfilingRules{} : config::profiling_rules_of(*rules);
}

std::vector<RuleResult> run_rules(const RunProfile& profile, const config::ProfilingRules& parameters) {
  const rules::RuleData data{.steps = rules::step_series(profile),
                             .hosts = rules::host_series(profile),
                             .loaders = rules::loader_series(profile),
                             .initialization = rules::initialization_times(profile),
                             .model = rules::model_facts(profile)};
  // Only analysis registers rules, so all parameters are a RuleSet.
  return dynamic_cast<const rules::RuleSet&>(parameters.parameters()).judge(data);
}

Json to_json(const std::vector<RuleResult>& results) {
  Json list = Json::array();
  for (const RuleResult& result : results) {
    list.push_back({{"name", result.name},
                    {"group", result.group},
                    {"description", result.description},
                    {"recommendation", result.recommendation},
                    {"applicable", result.applicable},
                    {"why_not", result.why_not},
                    {"datapoints", result.datapoints},
                    {"triggered", result.triggered},
                    {"unit", result.unit},
                    {"parameters", result.parameters},
                    {"counts", result.counts},
                    {"details", result.details}});
  }
  return list;
}

}  // namespace dtrain::analysis

namespace dtrain::analysis::rules {

// The unit of a result is a plural.
std::string triggered_text(const RuleResult& result) {
  const std::string one = result.unit.substr(0, result.unit.size() - 1);
  return count_text(result.triggered) + " " + (result.triggered == 1 ? one : result.unit) + ", of " +
         count_text(result.datapoints, "data point") + " judged";
}

void write_rules(TextWriter& out, const std::vector<RuleResult>& results) {
  std::vector<std::string> fine;
  std::map<std::string, std::vector<std::string>> not_applicable;  // by the reason
  out.heading("Rules");
  for (const RuleResult& result : results) {
    if (!result.applicable) {
      not_applicable[result.why_not].push_back(result.name);
    } else if (result.triggered == 0) {
      fine.push_back(result.name);
    } else {
      out.line("  {:<24}triggered by {}", result.name, triggered_text(result));
      out.paragraph(result.recommendation, 8, "     ->");
    }
  }
  if (!fine.empty()) out.paragraph("not triggered: " + join(fine, ", "), 4, "  ");
  for (const auto& [why, names] : not_applicable)
    out.paragraph("not applicable (" + why + "): " + join(names, ", "), 4, "  ");
}

}  // namespace dtrain::analysis::rules
