// Nothing is computed while the CPUs wait for disks: the training waits for data.
#include "rules/host/bottleneck.h"

namespace dtrain::analysis::rules {

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

}  // namespace dtrain::analysis::rules
