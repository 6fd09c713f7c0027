#include "rules/gpu/gpu_rule.h"

#include <utility>

namespace dtrain::analysis::rules {

RuleResult judge_gpus(RuleResult result, Hosts hosts, std::int64_t patience, GpuMetric metric,
                      const std::string& why_not, const std::function<GpuVerdict(const std::vector<double>&)>& judge) {
  if (!has_gpus(hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t unknown = 0;
  Json all = Json::array();
  const auto gpus = gpu_points(hosts, patience, metric, result.counts);
  for (const GpuPoints& gpu : gpus) {
    if (gpu.values.empty()) {
      ++unknown;
      continue;
    }
    const GpuVerdict verdict = judge(gpu.values);
    result.datapoints += static_cast<std::int64_t>(gpu.values.size());
    result.triggered += verdict.triggered ? 1 : 0;
    Json one = describe(gpu);
    one.update(verdict.facts);
    one["triggered"] = verdict.triggered;
    all.push_back(std::move(one));
  }
  if (all.empty()) return not_applicable(std::move(result), why_not);
  return count_each(std::move(result), "gpus", gpus.size(), unknown, std::move(all));
}

RuleResult judge_gpu_share(RuleResult result, Hosts hosts, double threshold_percent, const std::string& why_not,
                           const std::function<std::optional<bool>(const Gpu&, const GpuReading&)>& holds) {
  if (!has_gpus(hosts)) return not_applicable(std::move(result), kNoGpu);
  std::size_t gpus = 0;
  std::int64_t unknown = 0;
  std::int64_t affected_points = 0;
  Json all = Json::array();
  for (const HostSeries& host : hosts) {
    const Judged judged = judged_samples(host, 0);
    count_samples(result.counts, host, judged);
    for (std::size_t at = 0; at < host.gpus.size(); ++at) {
      std::int64_t points = 0;
      std::int64_t affected = 0;
      for (const HostSample& sample : judged.samples) {
        const auto found = at < sample.gpus.size() ? holds(host.gpus[at], sample.gpus[at]) : std::nullopt;
        points += found ? 1 : 0;
        affected += found.value_or(false) ? 1 : 0;
      }
      ++gpus;
      unknown += points == 0 ? 1 : 0;
      const double share = percent(affected, points);
      const bool triggers = share > threshold_percent;
      result.datapoints += points;
      affected_points += affected;
      result.triggered += triggers ? 1 : 0;
      Json one = describe({&host, at, {}});
      one.update({{"data_points", points}, {"affected", affected}, {"percent", share}, {"triggered", triggers}});
      all.push_back(std::move(one));
    }
  }
  if (result.datapoints == 0) return not_applicable(std::move(result), why_not);
  result.counts["gpu_points"] = result.datapoints;
  result.counts["affected_points"] = affected_points;
  return count_each(std::move(result), "gpus", gpus, unknown, std::move(all));
}

}  // namespace dtrain::analysis::rules
