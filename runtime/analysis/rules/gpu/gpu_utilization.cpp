// Each GPU's mean utilization during the training: it should be 90% and more.
#include <numeric>

#include "rules/gpu/gpu_rule.h"

namespace dtrain::analysis::rules {
namespace {

struct GpuUtilization {
  static constexpr const char* kWord = "GPUUtilization";
  static constexpr const char* kText = "GPUs with a low mean utilization.";
  static constexpr bool kGpusOnly = true;
  double threshold = 90;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "The mean utilization, in percent, should be at least this."}, threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult GpuUtilization::judge(const RuleData& data) const {
  return judge_gpus(begin_result(kWord, "system", "GPUs",
                                 "Compares each GPU's mean utilization during the training with what it should be.",
                                 "Look at the waterfall for what the GPUs wait for: data, communication, or the "
                                 "CPUs."),
                    data.hosts, patience, &GpuReading::util_percent,
                    "no GPU reported its utilization during the training", [&](const std::vector<double>& busy) {
                      const double mean =
                          std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
                      return GpuVerdict{mean < threshold, {{"mean_percent", mean}}};
                    });
}

std::unique_ptr<Rule> make_gpu_utilization() {
  return std::make_unique<RuleOf<GpuUtilization>>();
}

}  // namespace dtrain::analysis::rules
