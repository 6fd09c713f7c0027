#include "dtrain/analysis/rules.h"

#include "dtrain/analysis/run_profile.h"
#include "dtrain/config/profiling_rules.h"
#include "rules/adapter.h"
#include "rules/all_rules.h"

namespace dtrain::analysis {

config::ProfilingRules rules_of(const RunProfile& profile) {
  const auto profiling = profile.experiment.find("profiling");
  if (profiling == profile.experiment.end() || !profiling->is_object()) return {};
  const auto rules = profiling->find("rules");
  return rules == profiling->end() ? config::ProfilingRules{} : config::profiling_rules_of(*rules);
}

std::vector<RuleResult> run_rules(const RunProfile& profile, const config::ProfilingRules& parameters) {
  const auto steps = rules::step_series(profile);
  const auto hosts = rules::host_series(profile);
  const auto loaders = rules::loader_series(profile);
  const auto model = rules::model_facts(profile);
  std::vector<RuleResult> results = {
      rules::step_outlier(steps, parameters.step_outlier),
      rules::dataloader(loaders, hosts, parameters.dataloader),
      rules::low_gpu_utilization(hosts, parameters.low_gpu_utilization),
      rules::load_balancing(hosts, parameters.load_balancing),
      rules::io_bottleneck(hosts, parameters.io_bottleneck),
      rules::cpu_bottleneck(hosts, parameters.cpu_bottleneck),
      rules::batch_size(hosts, parameters.batch_size),
      rules::gpu_memory_increase(hosts, parameters.gpu_memory_increase),
      rules::max_initialization_time(rules::initialization_times(profile), parameters.max_initialization_time),
      rules::idle_cores(hosts, parameters.idle_cores),
      rules::cpu_oversubscription(hosts, parameters.cpu_oversubscription),
      rules::gpu_utilization(hosts, parameters.gpu_utilization),
      rules::gpu_memory_full(hosts, parameters.gpu_memory_full),
      rules::host_memory_full(hosts, parameters.host_memory_full),
      rules::network_full(hosts, parameters.network_full),
      rules::cpu_full(hosts, parameters.cpu_full),
      rules::disk_rate(hosts, parameters.disk_rate),
      rules::gpu_foreign_processes(hosts, parameters.gpu_foreign_processes),
      rules::gpu_temperature(hosts, parameters.gpu_temperature),
      rules::loader_rate(loaders, parameters.loader_rate),
      rules::pinned_memory(loaders, hosts),
      rules::dimension_multiples(model, hosts, parameters.dimension_multiples),
      rules::mixed_precision(model, hosts),
      rules::fused_optimizer(model),
  };
  const Json values = config::to_json(parameters);
  for (RuleResult& result : results) {
    if (const auto of_this = values.find(result.name); of_this != values.end()) result.parameters = *of_this;
  }
  return results;
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
