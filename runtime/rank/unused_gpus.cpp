#include "dtrain/rank/unused_gpus.h"

#include "dtrain/base/text.h"
#include "dtrain/rank/gpus_seen.h"

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

}  // namespace dtrain::run
