// Nothing is computed while the CPUs wait for disks: the training waits for data.
#include "rules/host/bottleneck.h"

namespace dtrain::analysis::rules {
namespace {

struct IoBottleneck {
  static constexpr const char* kWord = "IOBottleneck";
  static constexpr const char* kText = "GPUs (on CPUs: ranks) that are idle while the cores wait for disks.";
  double threshold = 50, io_threshold = 50, gpu_threshold = 10;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"io_threshold", "I/O wait, in percent, above which the cores wait for disks."}, io_threshold,
                kPercent);
    keys.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."}, gpu_threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult IoBottleneck::judge(const RuleData& data) const {
  return judge_bottleneck(
      begin_result(kWord, "report", "hosts",
                   "Looks for times in which the CPUs wait for disks and all GPUs of the host are idle (on CPUs: "
                   "its ranks hardly compute), and triggers where these are more than the threshold's share of the "
                   "training.",
                   "Keep the data in memory, use a binary format that is read in sequence, or a faster disk."),
      data.hosts, {threshold, io_threshold, gpu_threshold, patience},
      [](const HostSample& sample) { return sample.io_wait_percent; });
}

std::unique_ptr<Rule> make_io_bottleneck() {
  return std::make_unique<RuleOf<IoBottleneck>>();
}

}  // namespace dtrain::analysis::rules
