#include "rules/host/host_rule.h"

namespace dtrain::analysis::rules {

RuleResult judge_hosts(RuleResult result, Hosts hosts, std::int64_t patience, const std::string& why_not,
                       const std::function<std::optional<HostVerdict>(const HostSeries&, const Judged&)>& judge) {
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const HostSeries& host : hosts) {
    const Judged judged = judged_samples(host, patience);
    count_samples(result.counts, host, judged);
    const auto verdict = judged.samples.empty() ? std::nullopt : judge(host, judged);
    if (!verdict) {
      ++unknown;
      continue;
    }
    result.datapoints += verdict->points;
    result.triggered += verdict->triggered ? 1 : 0;
    Json one = {{"agent", host.agent}, {"host", host.host}};
    one.update(verdict->facts);
    one["triggered"] = verdict->triggered;
    all.push_back(std::move(one));
  }
  if (all.empty()) {
    const bool none = result.counts.value("judged", std::int64_t{0}) == 0;
    return not_applicable(std::move(result), none ? kNoSystemSample : why_not);
  }
  return count_each(std::move(result), "hosts", hosts.size(), unknown, std::move(all));
}

std::vector<double> values_of(std::span<const HostSample> samples,
                              const std::function<std::optional<double>(const HostSample&)>& value) {
  std::vector<double> values;
  for (const HostSample& sample : samples) {
    if (const auto found = value(sample)) values.push_back(*found);
  }
  return values;
}

}  // namespace dtrain::analysis::rules
