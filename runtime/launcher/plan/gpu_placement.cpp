#include "plan/gpu_placement.h"

#include <algorithm>
#include <map>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/gpus_seen.h"

namespace dtrain::run {
namespace {

// Returns the agents of the plan that have ranks, by id.
std::map<std::string, const scheduler::ClusterAgent*> agents_of(const LaunchPlan& plan) {
  std::map<std::string, const scheduler::ClusterAgent*> agents;
  for (const scheduler::ClusterAgent& agent : plan.cluster.agents) agents[agent.agent.id] = &agent;
  return agents;
}

// Counts the GPU slots of earlier agents on this agent's host: the file's order of agents divides a host's GPUs.
int gpus_before(const scheduler::ClusterAgent& agent, const LaunchPlan& plan) {
  int before = 0;
  for (const scheduler::ClusterAgent& other : plan.cluster.agents) {
    if (other.agent.id == agent.agent.id) break;
    if (other.agent.host == agent.agent.host && other.agent.slot_type != config::AgentSlotType::kCpu) {
      before += other.agent.slots;
    }
  }
  return before;
}

}  // namespace

scheduler::Machine machine_with_gpus() {
  scheduler::Machine machine;
  machine.look_at_gpus = [](std::vector<std::string>& warnings) {
    const auto seen = look_at_gpus(kGpuPatienceOfRuns);
    if (!seen) {
      warnings.push_back("NVIDIA's driver does not answer within " + std::to_string(kGpuPatienceOfRuns.count()) +
                         " s, so this machine's GPUs are no slots; dmesg says why");
      return std::vector<host::GpuInfo>();
    }
    warnings.insert(warnings.end(), seen->warnings.begin(), seen->warnings.end());
    return seen->gpus;
  };
  return machine;
}

config::AgentSlotType asked_slot_type(const config::Experiment& experiment) {
  switch (experiment.resources.slot_type) {
    case config::SlotType::kCpu:
      return config::AgentSlotType::kCpu;
    case config::SlotType::kCuda:
      return config::AgentSlotType::kCuda;
    case config::SlotType::kAuto:
      break;
  }
  return config::AgentSlotType::kAuto;
}

config::AgentSlotType decide_slot_type(const config::Experiment& experiment, const scheduler::ClusterAgents& cluster) {
  const config::AgentSlotType asked = asked_slot_type(experiment);
  if (asked != config::AgentSlotType::kAuto) return asked;
  const bool has_gpus = std::any_of(cluster.agents.begin(), cluster.agents.end(), [&](const auto& one) {
    return one.agent.resource_pool == experiment.resources.resource_pool &&
           one.agent.slot_type == config::AgentSlotType::kCuda;
  });
  return has_gpus ? config::AgentSlotType::kCuda : config::AgentSlotType::kCpu;
}

void check_devices_support(const config::Experiment& experiment, bool on_gpus) {
  const std::vector<std::string> keys =
      on_gpus ? config::keys_not_for_gpus(experiment) : config::keys_not_for_cpus(experiment);
  if (keys.empty()) return;
  throw ConfigError(
      experiment.file.string() + ": " + keys.front() + ": " + (on_gpus ? config::kNotForGpus : config::kNotForCpus),
      std::string("resources.slot_type is auto, and there are ") + (on_gpus ? "GPUs" : "no GPUs"));
}

std::string refusal_on_gpus(const LaunchPlan& plan) {
  std::string text;
  for (const std::string& warning : plan.cluster.warnings) text += "\n  " + warning;
  const auto& agents = plan.cluster.agents;
  const bool here = std::any_of(agents.begin(), agents.end(), [](const auto& agent) { return agent.here; });
  const bool has_gpu = std::any_of(agents.begin(), agents.end(), [](const scheduler::ClusterAgent& agent) {
    return std::any_of(agent.slots.begin(), agent.slots.end(), [](const auto& slot) { return slot.is_gpu(); });
  });
  if (here && !has_gpu && plan.cluster.warnings.empty()) {
    text += "\n  this machine: NVIDIA's driver (NVML) reports no GPU, or CUDA_VISIBLE_DEVICES hides all of them";
  }
  return text;
}

void check_gpus_are_free(LaunchPlan& plan) {
  if (!plan.on_gpus() || plan.launcher.type != config::LauncherType::kLocal) return;
  const auto is_here = [](const RankPlacement& rank) { return rank.gpu && rank.gpu->index >= 0; };
  if (std::none_of(plan.ranks.begin(), plan.ranks.end(), is_here)) return;
  const auto setups = look_at_gpu_setups(kGpuPatienceOfRuns);
  if (!setups) return;
  for (const RankPlacement& rank : plan.ranks) {
    if (!is_here(rank)) continue;
    const auto setup = std::find_if(setups->gpus.begin(), setups->gpus.end(),
                                    [&](const host::GpuSetup& one) { return one.index == rank.gpu->index; });
    if (setup == setups->gpus.end()) continue;
    const GpuUse use = use_of_gpu(*setup, text_of(*rank.gpu), {});
    if (!use.refusal.empty()) throw ConfigError(use.refusal, use.remedy);
    if (!use.warning.empty()) plan.warnings.push_back(use.warning);
  }
}

Variables gpu_variables(const LaunchPlan& plan) {
  std::vector<std::string> gpus;
  for (const RankPlacement& rank : plan.ranks) {
    if (rank.host == plan.host && rank.gpu) gpus.push_back(rank.gpu->id());
  }
  return {{"CUDA_VISIBLE_DEVICES", join(gpus, ",")}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}};
}

std::string gpus_variable(const LaunchPlan& plan) {
  const auto agents = agents_of(plan);
  std::map<std::string, std::size_t> hosts;
  std::vector<std::string> parts;
  for (const RankPlacement& rank : plan.ranks) {
    const std::size_t host = hosts.try_emplace(rank.host, hosts.size()).first->second;
    const auto agent = agents.find(rank.agent);
    const int before = agent == agents.end() ? 0 : gpus_before(*agent->second, plan);
    parts.push_back(std::to_string(host) + ":" +
                    (rank.gpu ? rank.gpu->id() : std::to_string(before + std::max(0, rank.slot))));
  }
  return join(parts, ",");
}

}  // namespace dtrain::run
