#include "measure/gpus_of_ranks.h"

#include <algorithm>

#include "read/json_fields.h"

namespace dtrain::analysis {

bool trains_on_gpus(const RunProfile& run) {
  const std::string decided = text(run.plan, "slot_type");
  if (!decided.empty()) return decided == "cuda";
  const auto resources = run.experiment.find("resources");
  if (resources == run.experiment.end() || !resources->is_object()) return true;
  return text(*resources, "slot_type") == "cuda";
}

bool has_gpu(const RankProfile& rank) {
  const auto recorded = rank.header.find("gpu");
  return recorded != rank.header.end() && recorded->is_object();
}

bool ranks_have_gpus(const RunProfile& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), has_gpu);
}

bool has_times_of_gpus(const RunProfile& run) {
  if (!ranks_have_gpus(run)) return false;
  const auto profiling = run.experiment.find("profiling");
  if (profiling == run.experiment.end() || !profiling->is_object()) return true;
  const auto wanted = profiling->find("sync_timings");
  return wanted == profiling->end() || !wanted->is_boolean() || wanted->get<bool>();
}

std::optional<std::map<std::int64_t, int>> ranks_by_gpu(const RunProfile& run, const AgentProfile& agent) {
  std::map<std::int64_t, int> ranks;
  bool any = false;
  for (const RankProfile& rank : run.ranks) {
    if (run.agent_of(rank) != &agent) continue;
    any = true;
    const auto recorded = rank.header.find("gpu");
    if (recorded == rank.header.end() || !recorded->is_object()) return std::nullopt;
    const std::string uuid = text(*recorded, "uuid");
    const std::int64_t index = integer(*recorded, "index", -1);
    // A MIG instance is only a part of a GPU: what is sampled of that is not the rank's alone, and its name matches
    // none.
    const auto gpu = std::find_if(agent.gpus.begin(), agent.gpus.end(), [&](const GpuLine& line) {
      return uuid.empty() ? line.index == index : line.uuid == uuid;
    });
    if (gpu != agent.gpus.end()) ranks.try_emplace(gpu->index, rank.rank);
  }
  return any ? std::optional(ranks) : std::nullopt;
}

}  // namespace dtrain::analysis
