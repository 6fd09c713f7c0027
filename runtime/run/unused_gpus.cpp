#include "unused_gpus.h"

#include "dtrain/base/text.h"
#include "gpus_seen.h"

namespace dtrain::run {

std::string find_unused_gpus(const config::Experiment& experiment) {
  if (experiment.resources.slot_type == config::SlotType::kCpu) return {};
  const auto seen = look_at_gpus();
  if (!seen || seen->gpus.empty()) return {};
  const std::size_t count = seen->gpus.size();
  std::string text = std::to_string(count) + (count == 1 ? " GPU (" : " GPUs (");
  for (const host::GpuInfo& gpu : seen->gpus) text += (&gpu == &seen->gpus.front() ? "" : ", ") + gpu.name;
  return text + ")";
}

std::string unused_gpus_warning(const std::string& gpus) {
  return "this machine has " + gpus +
         ", which are not used: training uses CPUs alone so far; resources.slot_type: cpu says that this is meant";
}

std::string unused_rules_warning(const config::Experiment& experiment) {
  std::vector<std::string> names = config::changed_gpu_rules(experiment.profiling_rules);
  if (names.empty()) return {};
  for (std::string& name : names) name = "profiling.rules." + name;
  return join_with_and(names) + (names.size() == 1 ? " has" : " have") +
         " no effect: the trial runs on CPUs; remove them, unless this file also serves machines with GPUs";
}

}  // namespace dtrain::run
