// What CPUBottleneck and IOBottleneck share: data points at which something of a host is busy and nothing computes
// there, neither its GPUs nor, where CPUs train, its ranks. Private to analysis.
#pragma once

#include <functional>
#include <optional>

#include "rules/judge.h"

namespace dtrain::analysis::rules {

struct BottleneckLimits {
  double share_percent = 0;  // of the data points; more trigger
  double busy_above = 0, computing_below = 0;
  std::int64_t patience = 0;
};

// `busy`: the metric, in percent.
RuleResult judge_bottleneck(RuleResult result, Hosts hosts, const BottleneckLimits& limits,
                            const std::function<std::optional<double>(const HostSample&)>& busy);

}  // namespace dtrain::analysis::rules
