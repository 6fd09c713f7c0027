// Programs that are no ranks of the run and compute on its GPUs.
#include "rules/gpu/gpu_rule.h"

namespace dtrain::analysis::rules {
namespace {

struct GpuForeignProcesses {
  static constexpr const char* kWord = "GPUForeignProcesses";
  static constexpr const char* kText = "Other programs on the run's GPUs.";
  static constexpr bool kGpusOnly = true;
  double threshold = 0;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which there may be one."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult GpuForeignProcesses::judge(const RuleData& data) const {
  return judge_gpu_share(
      begin_result(kWord, "system", "GPUs", "Looks for programs that are no ranks of this run and compute on its GPUs.",
                   "End those programs, or train on GPUs of your own."),
      data.hosts, threshold, "no GPU reported which programs compute on it",
      [](const Gpu&, const GpuReading& reading) -> std::optional<bool> {
        if (!reading.foreign_processes) return std::nullopt;
        return *reading.foreign_processes > 0;
      });
}

std::unique_ptr<Rule> make_gpu_foreign_processes() {
  return std::make_unique<RuleOf<GpuForeignProcesses>>();
}

}  // namespace dtrain::analysis::rules
