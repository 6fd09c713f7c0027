// GPUs that do nothing while the processors are busy: they wait for the processors.
#include "rules/bottleneck.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {

RuleResult cpu_bottleneck(Hosts hosts, const Rules::CpuBottleneck& parameters) {
  return judge_bottleneck(
      begin_result("CPUBottleneck", "report", "hosts",
                   "Looks for times in which the processors are busy and all GPUs of the host are idle, and triggers "
                   "where these are more than the threshold's share of the training.",
                   "Use more loader workers, prepare data before the training, or do the preprocessing on the GPU."),
      hosts, {parameters.threshold, parameters.cpu_threshold, parameters.gpu_threshold, parameters.patience},
      [](const HostSample& sample) { return sample.cpu_percent; });
}

}  // namespace dtrain::analysis::rules
