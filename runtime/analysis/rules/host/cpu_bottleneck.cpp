// Nothing is computed while the CPUs are busy: the training waits for their other work.
#include "rules/host/bottleneck.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {

RuleResult cpu_bottleneck(Hosts hosts, const Rules::CpuBottleneck& parameters) {
  return judge_bottleneck(
      begin_result(
          "CPUBottleneck", "report", "hosts",
          "Looks for times in which the CPUs are busy and all GPUs of the host are idle (on CPUs: its "
          "ranks hardly compute), and triggers where these are more than the threshold's share of the training.",
          "Prepare data before the training, make reading a sample cheaper, or keep other programs away."),
      hosts, {parameters.threshold, parameters.cpu_threshold, parameters.gpu_threshold, parameters.patience},
      [](const HostSample& sample) { return sample.cpu_percent; });
}

}  // namespace dtrain::analysis::rules
