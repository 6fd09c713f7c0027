#include "unused_gpus.h"

#include "dtrain/analysis/findings.h"
#include "dtrain/base/text.h"
#include "gpus_seen.h"

namespace dtrain::run {

std::string gpus_text(const std::vector<host::VisibleGpu>& gpus) {
  if (gpus.empty()) return {};
  std::vector<std::string> names;
  for (const host::VisibleGpu& gpu : gpus) names.push_back(gpu.info ? gpu.info->name : gpu.id);
  return count_of(names.size(), "GPU") + " (" + join(names, ", ") + ")";
}

std::string find_unused_gpus(const config::Experiment& experiment, const Variables& variables) {
  if (experiment.resources.slot_type == config::SlotType::kCpu) return {};
  const auto seen = look_at_gpus();
  if (!seen) return {};
  const auto value = variables.find("CUDA_VISIBLE_DEVICES");
  return gpus_text(
      host::visible_gpus(seen->gpus, value == variables.end() ? std::nullopt : std::optional(value->second)));
}

std::string unused_gpus_warning(const std::string& gpus, const std::string& why) {
  return "this machine has " + gpus + ", which are not used: " + why +
         "; resources.slot_type: cpu says that this is meant";
}

std::string unused_rules_warning(const config::Experiment& experiment) {
  std::vector<std::string> names = analysis::changed_gpu_rules(experiment.profiling_rules);
  if (names.empty()) return {};
  for (std::string& name : names) name = "profiling.rules." + name;
  return join_with_and(names) + (names.size() == 1 ? " has" : " have") +
         " no effect: the trial runs on CPUs; remove them, unless this file also serves machines with GPUs";
}

}  // namespace dtrain::run
