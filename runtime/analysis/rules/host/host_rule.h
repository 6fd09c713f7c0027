// What rules share that judge one number of each host. Private to analysis.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rules/judge.h"

namespace dtrain::analysis::rules {

struct HostVerdict {
  bool triggered = false;
  std::int64_t points = 0;  // judged
  Json facts = Json::object();
};

// Calls `judge` with each host's judged samples and adds up the results. Where it returns nothing for every host, the
// rule does not apply for the reason `why_not`.
RuleResult judge_hosts(RuleResult result, Hosts hosts, std::int64_t patience, const std::string& why_not,
                       const std::function<std::optional<HostVerdict>(const HostSeries&, const Judged&)>& judge);

// The values that `value` finds in the samples.
std::vector<double> values_of(std::span<const HostSample> samples,
                              const std::function<std::optional<double>(const HostSample&)>& value);

}  // namespace dtrain::analysis::rules
