// GPUs that slow down because they are hot: the driver reports it, or their temperature is near that at which they do.
#include "rules/gpu/gpu_rule.h"

namespace dtrain::analysis::rules {

RuleResult GpuTemperature::judge(const RuleData& data) const {
  return judge_gpu_share(
      begin_result(kWord, "system", "GPUs", "Looks for GPUs that slow down because they are hot, or are about to.",
                   "Cool the machine better; until then a lower power limit is slower at times, but evenly so."),
      data.hosts, threshold, "no GPU reported its temperature together with that at which it slows down",
      [&](const Gpu& gpu, const GpuReading& reading) -> std::optional<bool> {
        const bool slowed = reading.slowed_by_heat.value_or(false);
        if (reading.celsius && gpu.slowdown_celsius) {
          return slowed || *reading.celsius > *gpu.slowdown_celsius - margin;
        }
        return reading.slowed_by_heat;
      });
}

}  // namespace dtrain::analysis::rules
