// Nothing is computed while the CPUs are busy: the training waits for their other work.
#include "rules/host/bottleneck.h"

namespace dtrain::analysis::rules {
namespace {

struct CpuBottleneck {
  static constexpr const char* kWord = "CPUBottleneck";
  static constexpr const char* kText = "GPUs (on CPUs: ranks) that are idle while the cores are busy.";
  double threshold = 50, cpu_threshold = 90, gpu_threshold = 10;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"cpu_threshold", "CPU utilization, in percent, above which the cores are busy."}, cpu_threshold,
                kPercent);
    keys.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."}, gpu_threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult CpuBottleneck::judge(const RuleData& data) const {
  return judge_bottleneck(
      begin_result(
          kWord, "report", "hosts",
          "Looks for times in which the CPUs are busy and all GPUs of the host are idle (on CPUs: its "
          "ranks hardly compute), and triggers where these are more than the threshold's share of the training.",
          "Prepare data before the training, make reading a sample cheaper, or keep other programs away."),
      data.hosts, {threshold, cpu_threshold, gpu_threshold, patience},
      [](const HostSample& sample) { return sample.cpu_percent; });
}

std::unique_ptr<Rule> make_cpu_bottleneck() {
  return std::make_unique<RuleOf<CpuBottleneck>>();
}

}  // namespace dtrain::analysis::rules
