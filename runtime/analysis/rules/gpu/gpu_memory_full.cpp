// GPU memory that was nearly full at some time of the run: a little more, and the run ends.
#include <algorithm>

#include "rules/all_rules.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {

RuleResult gpu_memory_full(Hosts hosts, const Rules::GpuMemoryFull& parameters) {
  RuleResult result =
      begin_result("GPUMemoryFull", "system", "GPUs",
                   "Looks for GPU memory that was nearly full at some time: a little more ends the run.",
                   "Use a smaller batch with optimizations.aggregation_frequency above 1, or keep fewer "
                   "tensors.");
  if (!has_gpus(hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t unknown = 0;
  Json all = Json::array();
  const auto gpus = gpu_points(
      hosts, 0, [](const HostSample&, const GpuReading& gpu) { return gpu.memory_percent; }, result.counts);
  for (const GpuPoints& gpu : gpus) {
    if (gpu.values.empty()) {
      ++unknown;
      continue;
    }
    const double most = *std::max_element(gpu.values.begin(), gpu.values.end());
    const bool triggers = most > parameters.threshold;
    result.datapoints += static_cast<std::int64_t>(gpu.values.size());
    result.triggered += triggers ? 1 : 0;
    Json one = describe(gpu);
    one["most_percent"] = most;
    one["triggered"] = triggers;
    all.push_back(std::move(one));
  }
  if (result.datapoints == 0)
    return not_applicable(std::move(result), "no GPU reported how much of its memory is in use");
  const auto count = static_cast<std::int64_t>(gpus.size());
  result.counts["gpus"] = count;
  result.counts["not_known"] = unknown;
  result.counts["fine"] = count - unknown - result.triggered;
  result.counts["triggered"] = result.triggered;
  result.details["gpus"] = std::move(all);
  return result;
}

}  // namespace dtrain::analysis::rules
