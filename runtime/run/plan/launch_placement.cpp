#include "plan/launch_placement.h"

#include <algorithm>
#include <map>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/cluster.h"
#include "dtrain/run/run_folder.h"
#include "entrypoint.h"
#include "libtorch.h"
#include "plan/gpu_placement.h"

namespace dtrain::run {
namespace {

// The first slots of each share: what a cluster without other tasks gives.
scheduler::Claim first_slots(const scheduler::Placement& placement) {
  scheduler::Claim claim;
  for (const scheduler::AgentShare& share : placement) {
    scheduler::ClaimedShare claimed{.agent = share.agent};
    for (int slot = 0; slot < share.slots; ++slot) claimed.slots.push_back(slot);
    claim.push_back(std::move(claimed));
  }
  return claim;
}

using AgentsById = std::map<std::string, const scheduler::ClusterAgent*>;

AgentsById by_id(const scheduler::ClusterAgents& cluster) {
  AgentsById agents;
  for (const scheduler::ClusterAgent& one : cluster.agents) agents[one.agent.id] = &one;
  return agents;
}

const scheduler::ClusterAgent& agent_named(const std::string& id, const AgentsById& agents) {
  const auto found = agents.find(id);
  if (found == agents.end()) throw Error("there is no agent '" + id + "' in the cluster");
  return *found->second;
}

scheduler::ClusterAgents cluster_for(const config::Experiment& experiment, config::AgentSlotType slot_default,
                                     const std::filesystem::path& file, Variables variables) {
  // The ranks' own variables decide which GPUs they see.
  for (const auto& [name, value] : experiment.variables_of_ranks(true)) {
    if (name == "CUDA_VISIBLE_DEVICES" || name == "CUDA_DEVICE_ORDER") variables[name] = value;
  }
  const scheduler::SlotDefaults defaults{.slot_type = slot_default,
                                         .least_slots = experiment.resources.slots_per_trial};
  return scheduler::find_cluster(file, variables, defaults, machine_with_gpus());
}

// Whether an experiment that fits on no GPUs would fit on cores.
bool fits_on_cores(const LaunchPlan& plan, const std::filesystem::path& cluster_file, const Variables& variables) {
  constexpr auto kCpu = config::AgentSlotType::kCpu;
  const scheduler::ClusterAgents cluster = cluster_for(plan.experiment, kCpu, cluster_file, variables);
  const scheduler::SlotRequest request = slot_request(plan.experiment, cluster.cluster.scheduler, kCpu);
  return scheduler::place(scheduler::empty_slots(cluster), request).has_value();
}

// Why libtorch cannot use the GPUs that the plan has chosen, as far as this machine's ranks are concerned. Empty: it
// can.
std::string why_no_cuda_here(const LaunchPlan& plan, const Variables& variables) {
  if (!plan.on_gpus() || plan.launcher.type != config::LauncherType::kLocal) return {};
  Variables of_a_rank = variables;
  for (const auto& [name, value] : plan.experiment.variables_of_ranks(true)) of_a_rank[name] = value;
  const std::filesystem::path program = find_entrypoint(plan.experiment, variables);
  const std::string library_path = find_libraries(program, of_a_rank);
  const auto given = of_a_rank.find("LD_LIBRARY_PATH");
  return why_no_cuda(program, !library_path.empty() ? library_path : given == of_a_rank.end() ? "" : given->second);
}

}  // namespace

scheduler::SlotRequest slot_request(const config::Experiment& experiment, const config::Scheduler& scheduler,
                                    config::AgentSlotType type) {
  return {.slots = experiment.resources.slots_per_trial,
          .is_single_node = experiment.resources.is_single_node,
          .resource_pool = experiment.resources.resource_pool,
          .slot_type = type,
          .policy = scheduler.fitting_policy,
          .allow_heterogeneous_fits = scheduler.allow_heterogeneous_fits};
}

void place_ranks(LaunchPlan& plan, const std::filesystem::path& cluster_file, const Variables& variables) {
  const auto choose = [&](const config::Experiment& experiment) {
    plan.cluster = cluster_for(experiment, asked_slot_type(experiment), cluster_file, variables);
    plan.launcher = plan.cluster.cluster.launcher;
    plan.request = slot_request(experiment, plan.cluster.cluster.scheduler, decide_slot_type(experiment, plan.cluster));
  };
  choose(plan.experiment);
  plan.why_no_cuda = why_no_cuda_here(plan, variables);
  if (!plan.why_no_cuda.empty()) {
    if (plan.experiment.resources.slot_type == config::SlotType::kCuda) {
      throw ConfigError("resources.slot_type is cuda, but " + plan.why_no_cuda,
                        "install the full libtorch (dtrain doctor names what is missing), or train on CPUs with "
                        "resources.slot_type: cpu");
    }
    config::Experiment on_cores = plan.experiment;
    on_cores.resources.slot_type = config::SlotType::kCpu;
    choose(on_cores);
  }
  check_devices_support(plan.experiment, plan.on_gpus());
  const std::vector<scheduler::AgentSlots> agents = scheduler::empty_slots(plan.cluster);
  const auto placement = scheduler::place(agents, plan.request);
  if (!placement) {
    const auto refusal = scheduler::never_fits(agents, plan.request, plan.experiment.global_batch_size);
    if (!refusal) throw Error("the slots fit on no agent, and no rule explains it: this is a bug in dtrain");
    std::string text = plan.cluster.source + ": " + refusal->text();
    std::string remedy = refusal->remedy;
    if (plan.on_gpus()) {
      text += refusal_on_gpus(plan);
      if (fits_on_cores(plan, cluster_file, variables)) remedy += "; or train on CPUs with resources.slot_type: cpu";
    }
    throw ConfigError(text, remedy);
  }
  plan.warnings.insert(plan.warnings.end(), plan.cluster.warnings.begin(), plan.cluster.warnings.end());
  assign_slots(plan, first_slots(*placement));
}

void assign_slots(LaunchPlan& plan, const scheduler::Claim& claim) {
  const AgentsById agents = by_id(plan.cluster);
  plan.placement.clear();
  plan.ranks.clear();
  for (const scheduler::ClaimedShare& share : claim) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, agents);
    plan.placement.push_back({share.agent, static_cast<int>(share.slots.size())});
    for (const int index : share.slots) {
      RankPlacement rank{.rank = plan.world_size(),
                         .host = agent.here ? plan.host : agent.agent.host,
                         .agent = share.agent,
                         .slot = index};
      const auto slot = std::find_if(agent.slots.begin(), agent.slots.end(),
                                     [&](const scheduler::ClusterSlot& one) { return one.index == index; });
      if (slot != agent.slots.end()) {
        rank.cpus = slot->cpus;
        rank.threads = slot->threads;
        if (slot->is_gpu()) rank.gpu = PlacedGpu{slot->gpu, slot->gpu_uuid, slot->gpu_name};
      }
      plan.ranks.push_back(std::move(rank));
    }
  }
}

void check_can_start(const LaunchPlan& plan) {
  if (plan.launcher.type == config::LauncherType::kMpi) {
    if (!find_program("mpirun", {}, process_variables()).empty()) return;
    throw ConfigError(plan.cluster.source + ": launcher: mpi needs mpirun, which is not in PATH",
                      "install Open MPI on every host (apt install openmpi-bin)");
  }
  if (plan.launcher.type == config::LauncherType::kSlurm) {
    if (!find_program("srun", {}, process_variables()).empty()) return;
    throw ConfigError(plan.cluster.source + ": launcher: slurm needs srun and sbatch, which are not in PATH",
                      "install Slurm's commands (apt install slurm-client), or start it where they are");
  }
  const AgentsById agents = by_id(plan.cluster);
  for (const scheduler::AgentShare& share : plan.placement) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, agents);
    if (agent.here) continue;
    throw ConfigError(plan.cluster.source + ": the ranks of agent " + share.agent + " belong on the host " +
                          agent.agent.host + ", but launcher: local starts ranks on this machine alone",
                      "launcher: mpi in the cluster file starts them there");
  }
}

std::string scaling_advice(const config::Experiment& experiment, bool has_overrides) {
  const scheduler::BatchAndSlots now{experiment.global_batch_size, experiment.resources.slots_per_trial};
  if (has_overrides) {
    try {
      const config::Experiment file = config::read_experiment(experiment.file);
      std::string advice = scheduler::weak_scaling_advice({file.global_batch_size, file.resources.slots_per_trial}, now,
                                                          experiment.file.string());
      if (!advice.empty()) return advice;
    } catch (const ConfigError&) {  // the file is complete only with the overrides
    }
  }
  try {
    const RunFolder last = find_run(experiment.name);
    const Json plan = read_json(last.plan());
    if (plan.at("name") != experiment.name) return {};
    return scheduler::weak_scaling_advice({plan.at("global_batch_size"), plan.at("world_size")}, now,
                                          "the run " + last.path.filename().string());
  } catch (const std::exception&) {  // no such run, or an unreadable plan: no reason to refuse training
    return {};
  }
}

scheduler::ClusterAgents find_cluster(const std::filesystem::path& given) {
  return scheduler::find_cluster(given, process_variables(), {}, machine_with_gpus());
}

}  // namespace dtrain::run
