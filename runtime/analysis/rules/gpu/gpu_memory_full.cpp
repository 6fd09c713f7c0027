// GPU memory that was nearly full at some time of the run: a little more, and the run ends.
#include <algorithm>

#include "rules/gpu/gpu_rule.h"

namespace dtrain::analysis::rules {
namespace {

struct GpuMemoryFull {
  static constexpr const char* kWord = "GPUMemoryFull";
  static constexpr const char* kText = "GPU memory that is nearly full.";
  static constexpr bool kGpusOnly = true;
  double threshold = 95;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage in use above which the memory is nearly full."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult GpuMemoryFull::judge(const RuleData& data) const {
  return judge_gpus(begin_result(kWord, "system", "GPUs",
                                 "Looks for GPU memory that was nearly full at some time: a little more ends the run.",
                                 "Use a smaller batch with optimizations.aggregation_frequency above 1, put "
                                 "dtrain::checkpoint() around layers of the trial's model, or keep fewer tensors."),
                    data.hosts, 0, &GpuReading::memory_percent, "no GPU reported how much of its memory is in use",
                    [&](const std::vector<double>& used) {
                      const double most = *std::max_element(used.begin(), used.end());
                      return GpuVerdict{most > threshold, {{"most_percent", most}}};
                    });
}

std::unique_ptr<Rule> make_gpu_memory_full() {
  return std::make_unique<RuleOf<GpuMemoryFull>>();
}

}  // namespace dtrain::analysis::rules
