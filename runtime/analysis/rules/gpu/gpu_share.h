// What rules share that judge at how many data points something holds of a GPU. Private to analysis.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rules/all_rules.h"

namespace dtrain::analysis::rules {

// Triggers for each GPU for which `holds` is true at more than `threshold_percent` of the data points that decide it.
RuleResult judge_gpu_share(RuleResult result, Hosts hosts, double threshold_percent, const std::string& why_not,
                           const std::function<std::optional<bool>(const Gpu&, const GpuReading&)>& holds);

}  // namespace dtrain::analysis::rules
