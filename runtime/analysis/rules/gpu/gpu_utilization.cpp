// Each GPU's mean utilization during the training: it should be 90% and more.
#include <numeric>

#include "rules/all_rules.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {

RuleResult gpu_utilization(Hosts hosts, const Rules::GpuUtilization& parameters) {
  RuleResult result = begin_result("GPUUtilization", "system", "GPUs",
                                   "Compares each GPU's mean utilization during the training with what it should be.",
                                   "Look at the waterfall for what the GPUs wait for: data, communication, or the "
                                   "CPUs.");
  if (!has_gpus(hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t unknown = 0;
  Json all = Json::array();
  const auto gpus = gpu_points(
      hosts, parameters.patience, [](const HostSample&, const GpuReading& gpu) { return gpu.util_percent; },
      result.counts);
  for (const GpuPoints& gpu : gpus) {
    if (gpu.values.empty()) {
      ++unknown;
      continue;
    }
    const auto points = static_cast<std::int64_t>(gpu.values.size());
    const double mean = std::accumulate(gpu.values.begin(), gpu.values.end(), 0.0) / static_cast<double>(points);
    const bool triggers = mean < parameters.threshold;
    result.datapoints += points;
    result.triggered += triggers ? 1 : 0;
    Json one = describe(gpu);
    one["mean_percent"] = mean;
    one["triggered"] = triggers;
    all.push_back(std::move(one));
  }
  if (result.datapoints == 0)
    return not_applicable(std::move(result), "no GPU reported its utilization during the training");
  const auto count = static_cast<std::int64_t>(gpus.size());
  result.counts["gpus"] = count;
  result.counts["not_known"] = unknown;
  result.counts["fine"] = count - unknown - result.triggered;
  result.counts["triggered"] = result.triggered;
  result.details["gpus"] = std::move(all);
  return result;
}

}  // namespace dtrain::analysis::rules
