// What rules share that judge each GPU by itself. Private to analysis.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rules/judge.h"

namespace dtrain::analysis::rules {

struct GpuVerdict {
  bool triggered = false;
  Json facts = Json::object();
};

// Calls `judge` with the values of each GPU that reported the metric, and adds up the results. Where none did, the rule
// does not apply for the reason `why_not`.
RuleResult judge_gpus(RuleResult result, Hosts hosts, std::int64_t patience, GpuMetric metric,
                      const std::string& why_not, const std::function<GpuVerdict(const std::vector<double>&)>& judge);

// Triggers for each GPU for which `holds` is true at more than `threshold_percent` of the data points that decide it.
RuleResult judge_gpu_share(RuleResult result, Hosts hosts, double threshold_percent, const std::string& why_not,
                           const std::function<std::optional<bool>(const Gpu&, const GpuReading&)>& holds);

}  // namespace dtrain::analysis::rules
