// GPUs that slow down because they are hot: the driver reports it, or their temperature is near that at which they do.
#include "rules/gpu/gpu_share.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {

RuleResult gpu_temperature(Hosts hosts, const Rules::GpuTemperature& parameters) {
  return judge_gpu_share(
      begin_result("GPUTemperature", "system", "GPUs",
                   "Looks for GPUs that slow down because they are hot, or are about to.",
                   "Cool the machine better; until then a lower power limit is slower at times, but evenly so."),
      hosts, parameters.threshold, "no GPU reported its temperature together with that at which it slows down",
      [&](const Gpu& gpu, const GpuReading& reading) -> std::optional<bool> {
        const bool slowed = reading.slowed_by_heat.value_or(false);
        if (reading.celsius && gpu.slowdown_celsius) {
          return slowed || *reading.celsius > *gpu.slowdown_celsius - parameters.margin;
        }
        return reading.slowed_by_heat;
      });
}

}  // namespace dtrain::analysis::rules
