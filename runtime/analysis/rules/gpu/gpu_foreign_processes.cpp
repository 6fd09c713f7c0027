// Programs that are no ranks of the run and compute on its GPUs.
#include "rules/gpu/gpu_rule.h"

namespace dtrain::analysis::rules {

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

}  // namespace dtrain::analysis::rules
