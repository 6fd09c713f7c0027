#include "dtrain/analysis/rules.h"

#include "dtrain/analysis/run_profile.h"
#include "dtrain/config/profiling_rules.h"
#include "rules/adapter.h"
#include "rules/judge_all.h"

namespace dtrain::analysis {

void rules::add_parameters(std::vector<RuleResult>& results, const Json& parameters) {
  for (RuleResult& result : results) {
    if (const auto own = parameters.find(result.name); own != parameters.end()) result.parameters = *own;
  }
}

config::ProfilingRules rules_of(const RunProfile& profile) {
  const auto profiling = profile.experiment.find("profiling");
  if (profiling == profile.experiment.end() || !profiling->is_object()) return {};
  const auto rules = profiling->find("rules");
  return rules == profiling->end() ? config::ProfilingRules{} : config::profiling_rules_of(*rules);
}

std::vector<RuleResult> run_rules(const RunProfile& profile, const config::ProfilingRules& parameters) {
  const rules::RuleData data{.steps = rules::step_series(profile),
                             .hosts = rules::host_series(profile),
                             .loaders = rules::loader_series(profile),
                             .initialization = rules::initialization_times(profile),
                             .model = rules::model_facts(profile)};
  return rules::judge_all(data, parameters.all);
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
