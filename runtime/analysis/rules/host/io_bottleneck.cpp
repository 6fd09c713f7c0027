// Nothing is computed while the CPUs wait for disks: the training waits for data.
#include "rules/host/bottleneck.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {

RuleResult io_bottleneck(Hosts hosts, const Rules::IoBottleneck& parameters) {
  return judge_bottleneck(
      begin_result("IOBottleneck", "report", "hosts",
                   "Looks for times in which the CPUs wait for disks and all GPUs of the host are idle (on CPUs: "
                   "its ranks hardly compute), and triggers where these are more than the threshold's share of the "
                   "training.",
                   "Keep the data in memory, use a binary format that is read in sequence, or a faster disk."),
      hosts, {parameters.threshold, parameters.io_threshold, parameters.gpu_threshold, parameters.patience},
      [](const HostSample& sample) { return sample.io_wait_percent; });
}

}  // namespace dtrain::analysis::rules
