// Nothing is computed while the CPUs are busy: the training waits for their other work.
#include "rules/host/bottleneck.h"

namespace dtrain::analysis::rules {

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

}  // namespace dtrain::analysis::rules
