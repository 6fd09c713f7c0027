#include "rules/host/bottleneck.h"

#include <algorithm>

namespace dtrain::analysis::rules {
namespace {

// The busiest GPU's utilization; empty where none reports it.
std::optional<double> busiest_gpu(const HostSample& sample) {
  std::optional<double> busiest;
  for (const GpuReading& gpu : sample.gpus) {
    if (gpu.util_percent) busiest = std::max(busiest.value_or(0), *gpu.util_percent);
  }
  return busiest;
}

}  // namespace

RuleResult judge_bottleneck(RuleResult result, Hosts hosts, const BottleneckLimits& limits,
                            const std::function<std::optional<double>(const HostSample&)>& busy) {
  const bool on_gpus = has_gpus(hosts);
  std::int64_t unknown = 0;
  std::int64_t busy_points = 0;
  std::int64_t bottlenecks = 0;
  Json all = Json::array();
  for (const HostSeries& host : hosts) {
    if (on_gpus && host.gpus.empty()) continue;
    const Judged judged = judged_samples(host, limits.patience);
    count_samples(result.counts, host, judged);
    std::int64_t points = 0;
    std::int64_t here = 0;
    for (const HostSample& sample : judged.samples) {
      const auto percent_busy = busy(sample);
      const auto computing = on_gpus ? busiest_gpu(sample) : sample.computing_percent;
      if (!percent_busy || !computing) {
        ++unknown;
        continue;
      }
      ++points;
      const bool is_busy = *percent_busy > limits.busy_above;
      busy_points += is_busy ? 1 : 0;
      here += is_busy && *computing < limits.computing_below ? 1 : 0;
    }
    result.datapoints += points;
    bottlenecks += here;
    const double share = percent(here, points);
    const bool triggers = share > limits.share_percent;
    result.triggered += triggers ? 1 : 0;
    all.push_back({{"agent", host.agent},
                   {"host", host.host},
                   {"data_points", points},
                   {"bottlenecks", here},
                   {"percent", share},
                   {"triggered", triggers}});
  }
  if (result.datapoints == 0) return not_applicable(std::move(result), kNoSystemSample);
  result.counts["without_reading"] = unknown;
  result.counts["not_busy"] = result.datapoints - busy_points;
  result.counts["busy_and_computing"] = busy_points - bottlenecks;
  result.counts["bottlenecks"] = bottlenecks;
  result.counts["triggered"] = result.triggered;
  result.details["hosts"] = std::move(all);
  return result;
}

}  // namespace dtrain::analysis::rules
