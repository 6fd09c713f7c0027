// GPUs that slow down because they are hot: the driver reports it, or their temperature is near that at which they do.
#include "rules/gpu/gpu_rule.h"

namespace dtrain::analysis::rules {
namespace {

struct GpuTemperature {
  static constexpr const char* kWord = "GPUTemperature";
  static constexpr const char* kText = "GPUs that slow down because they are hot.";
  static constexpr bool kGpusOnly = true;
  double threshold = 1;
  double margin = 5;  // degrees Celsius below the temperature at which the GPU slows down
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"margin", "A GPU is hot from this many degrees Celsius below the temperature at which it slows down."},
                margin, {0, 100});
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

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

std::unique_ptr<Rule> make_gpu_temperature() {
  return std::make_unique<RuleOf<GpuTemperature>>();
}

}  // namespace dtrain::analysis::rules
