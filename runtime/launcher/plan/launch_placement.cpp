#include "plan/launch_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/scheduler/core_groups.h"
#include "entrypoint.h"

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

namespace {

// Returns the first slots of each share: a cluster without other tasks gives these.
scheduler::Claim first_slots(const scheduler::Placement& placement, std::span<const scheduler::AgentSlots> agents,
                             const scheduler::SlotRequest& request) {
  scheduler::Claim claim;
  for (const scheduler::AgentShare& share : placement) {
    const auto agent =
        std::find_if(agents.begin(), agents.end(), [&](const auto& one) { return one.id == share.agent; });
    if (!agent->cores.empty()) {
      claim.push_back(scheduler::share_of_cores(*agent, request, share.slots, agent->cores));
      continue;
    }
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
                                     const std::filesystem::path& file, Variables variables,
                                     const scheduler::Machine& machine) {
  // The ranks' own variables decide which GPUs they see.
  for (const auto& [name, value] : experiment.variables_of_ranks(true)) {
    if (name == "CUDA_VISIBLE_DEVICES" || name == "CUDA_DEVICE_ORDER") variables[name] = value;
  }
  const scheduler::SlotDefaults defaults{.slot_type = slot_default,
                                         .least_slots = experiment.resources.slots_per_trial};
  return scheduler::find_cluster(file, variables, defaults, machine);
}

// True if an experiment that fits on no GPUs would fit on cores.
bool fits_on_cores(const LaunchPlan& plan, const std::filesystem::path& cluster_file, const Variables& variables,
                   const scheduler::Machine& machine) {
  constexpr auto kCpu = config::AgentSlotType::kCpu;
  const scheduler::ClusterAgents cluster = cluster_for(plan.experiment, kCpu, cluster_file, variables, machine);
  const scheduler::SlotRequest request = slot_request(plan.experiment, cluster.cluster.scheduler, kCpu);
  return scheduler::place(scheduler::empty_slots(cluster), request).has_value();
}

// Returns the reason why libtorch cannot use the GPUs that the plan has chosen for ranks on this machine. Empty: it can
// use them, or the launcher is not local.
std::string why_no_cuda_here(const LaunchPlan& plan, const Variables& variables) {
  if (!plan.on_gpus() || plan.launcher.type != config::LauncherType::kLocal) return {};
  Variables of_a_rank = variables;
  for (const auto& [name, value] : plan.experiment.variables_of_ranks(true)) of_a_rank[name] = value;
  const std::filesystem::path program = find_entrypoint(plan.experiment, variables);
  const std::string library_path = find_libraries(program, of_a_rank);
  const auto given = of_a_rank.find("LD_LIBRARY_PATH");
  return why_no_cuda(program, !library_path.empty() ? library_path : given == of_a_rank.end() ? "" : given->second);
}

std::vector<std::vector<int>> cpus_of(const std::vector<host::Core>& cores) {
  std::vector<std::vector<int>> cpus;
  for (const host::Core& core : cores) cpus.push_back(core.cpus);
  return cpus;
}

// ConfigError: the experiment asks for more cores than a declared slot has, on an agent where it is placed.
void check_slots_have_cores(const LaunchPlan& plan, const scheduler::Placement& placement) {
  const int wanted = plan.request.cores_per_slot;
  const AgentsById agents = by_id(plan.cluster);
  for (const scheduler::AgentShare& share : placement) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, agents);
    if (agent.of_cores) continue;
    for (const scheduler::ClusterSlot& slot : agent.slots) {
      if (slot.index < 0 || slot.cpus.empty() || slot.cores >= wanted) continue;
      throw ConfigError("resources.cores_per_slot is " + std::to_string(wanted) + ", but slot " +
                            std::to_string(slot.index) + " of agent " + share.agent + " (" + plan.cluster.source +
                            ") has " + count_of(slot.cores, "core"),
                        "use at most " + std::to_string(slot.cores) + ", or auto for all cores of the slot");
    }
  }
}

// Keeps only the first cores of a rank's slot, if cores_per_slot gives their number.
void keep_first_cores(RankPlacement& rank, const LaunchPlan& plan) {
  const int wanted = plan.request.cores_per_slot;
  if (wanted == 0 || rank.cpus.empty()) return;
  rank.cpus = scheduler::first_cores(cpus_of(plan.cluster.cores), rank.cpus, wanted);
  const bool all_cpus = rank.most_threads > rank.threads;
  rank.cores = std::min(rank.cores, wanted);
  rank.threads = std::min(rank.threads, rank.cores);
  rank.most_threads = all_cpus ? static_cast<int>(rank.cpus.size()) : rank.threads;
}

// Copies cores, threads and GPU of the rank's slot, if the slot is on this machine.
void take_slot(RankPlacement& rank, const LaunchPlan& plan, const scheduler::ClusterAgent& agent) {
  const auto slot = std::find_if(agent.slots.begin(), agent.slots.end(),
                                 [&](const scheduler::ClusterSlot& one) { return one.index == rank.slot; });
  if (slot == agent.slots.end()) return;
  rank.cpus = slot->cpus;
  rank.cores = slot->cores;
  rank.threads = slot->threads;
  rank.most_threads = slot->most_threads;
  if (slot->is_gpu()) rank.gpu = PlacedGpu{slot->gpu, slot->gpu_uuid, slot->gpu_name};
  keep_first_cores(rank, plan);
}

// Sets the cores of slot `i` of the share if the cgroup grants less time than cores: the kernel chooses which cores
// spend the time, so a slot keeps within a node that has a core for each of its threads.
void take_limited_cores(RankPlacement& rank, const scheduler::ClusterAgents& cluster,
                        const scheduler::ClusterAgent& agent, const scheduler::ClaimedShare& share, std::size_t i) {
  std::set<int> claimed;
  for (const std::vector<int>& numbers : share.cores) {
    for (const scheduler::ClusterSlot& unit : agent.slots) {
      if (std::binary_search(numbers.begin(), numbers.end(), unit.index)) {
        claimed.insert(unit.cpus.begin(), unit.cpus.end());
      }
    }
  }
  std::vector<scheduler::CoreUnit> units;
  for (const host::Core& core : cluster.cores) {
    if (claimed.contains(core.cpus.front())) units.push_back(scheduler::unit_of(core));
  }
  const auto slots = static_cast<int>(share.cores.size());
  const int threads = std::max(1, static_cast<int>(agent.slots.size()) / slots);
  const std::vector<int> group = scheduler::divide_cores_evenly(units, slots, threads)[i];
  rank.cpus = scheduler::cpus_of(cluster.cores, group);
  rank.cores = static_cast<int>(group.size());
  rank.threads = rank.most_threads = std::min(threads, rank.cores);
}

// Sets the cores of slot `i` of the share. If there are more slots than cores, they share cores, down to logical CPUs.
void take_cores(RankPlacement& rank, const scheduler::SlotRequest& request, const scheduler::ClusterAgents& cluster,
                const scheduler::ClusterAgent& agent, const scheduler::ClaimedShare& share, std::size_t i) {
  const std::vector<int>& numbers = share.cores[i];
  if (!agent.here) {  // `dtrain start-rank` finds them on their host
    rank.cores = static_cast<int>(numbers.size());
    return;
  }
  const auto cpus = cpus_of(cluster.cores);
  if (share.cores.size() > agent.slots.size()) {
    rank.cpus = scheduler::divide_cores(cpus, static_cast<int>(share.cores.size())).slots[i].cpus;
    rank.cores = scheduler::count_cores(cpus, rank.cpus);
    rank.threads = rank.most_threads = 1;
    return;
  }
  if (request.cores_per_slot == 0 && agent.slots.size() < cluster.cores.size()) {
    take_limited_cores(rank, cluster, agent, share, i);
    return;
  }
  for (const scheduler::ClusterSlot& core : agent.slots) {
    if (!std::binary_search(numbers.begin(), numbers.end(), core.index)) continue;
    rank.cpus.insert(rank.cpus.end(), core.cpus.begin(), core.cpus.end());
    rank.cores += core.cores;
    rank.threads += core.threads;
    rank.most_threads += core.most_threads;
  }
  std::sort(rank.cpus.begin(), rank.cpus.end());
}

int count_cpus(const std::vector<std::vector<int>>& of_ranks) {
  std::set<int> all;
  for (const std::vector<int>& cpus : of_ranks) {
    if (cpus.empty()) return 0;  // a rank of another host, or one that is not bound
    all.insert(cpus.begin(), cpus.end());
  }
  return static_cast<int>(all.size());
}

// Returns the number of CPUs that slots made of this machine's cores would have; 0: its slots are declared.
int cpus_of_slots(const config::Resources& resources, const scheduler::ClusterAgents& cluster) {
  if (cluster.agents.size() != 1 || !cluster.agents.front().of_cores || !cluster.agents.front().here) return 0;
  const std::size_t cores = resources.cores_per_slot == 0
                                ? cluster.cores.size()
                                : static_cast<std::size_t>(resources.slots_per_trial * resources.cores_per_slot);
  std::size_t cpus = 0;
  for (std::size_t i = 0; i < std::min(cores, cluster.cores.size()); ++i) cpus += cluster.cores[i].cpus.size();
  return static_cast<int>(cpus);
}

void make_threads_alike(std::vector<RankPlacement>& ranks) {
  std::vector<host::RankThreads> threads;
  for (const RankPlacement& rank : ranks) threads.push_back({rank.threads, rank.most_threads});
  const host::RankThreads least = host::threads_of_all(threads);
  for (RankPlacement& rank : ranks) {
    if (rank.threads == 0) continue;
    rank.threads = least.threads;
    rank.most_threads = least.most_threads;
  }
}

}  // namespace

scheduler::SlotRequest slot_request(const config::Experiment& experiment, const config::Scheduler& scheduler,
                                    config::AgentSlotType type) {
  return {.slots = experiment.resources.slots_per_trial,
          .cores_per_slot = experiment.resources.cores_per_slot,
          .is_single_node = experiment.resources.is_single_node,
          .resource_pool = experiment.resources.resource_pool,
          .slot_type = type,
          .policy = scheduler.fitting_policy,
          .allow_heterogeneous_fits = scheduler.allow_heterogeneous_fits};
}

void place_ranks(LaunchPlan& plan, const std::filesystem::path& cluster_file, const Variables& variables,
                 const std::optional<scheduler::Machine>& given) {
  const scheduler::Machine machine = given ? *given : machine_with_gpus();
  const auto choose = [&](const config::Experiment& experiment) {
    plan.cluster = cluster_for(experiment, asked_slot_type(experiment), cluster_file, variables, machine);
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
      if (fits_on_cores(plan, cluster_file, variables, machine))
        remedy += "; or train on CPUs with resources.slot_type: cpu";
    }
    throw ConfigError(text, remedy);
  }
  plan.warnings.insert(plan.warnings.end(), plan.cluster.warnings.begin(), plan.cluster.warnings.end());
  check_slots_have_cores(plan, *placement);
  assign_slots(plan, first_slots(*placement, agents, plan.request));
}

void assign_slots(LaunchPlan& plan, const scheduler::Claim& claim) {
  const AgentsById agents = by_id(plan.cluster);
  plan.placement.clear();
  plan.ranks.clear();
  for (const scheduler::ClaimedShare& share : claim) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, agents);
    plan.placement.push_back({share.agent, static_cast<int>(share.slots.size())});
    for (std::size_t i = 0; i < share.slots.size(); ++i) {
      RankPlacement rank{.rank = plan.world_size(),
                         .host = agent.here ? plan.host : agent.agent.host,
                         .agent = share.agent,
                         .slot = share.slots[i]};
      if (share.cores.empty()) {
        take_slot(rank, plan, agent);
      } else {
        take_cores(rank, plan.request, plan.cluster, agent, share, i);
      }
      plan.ranks.push_back(std::move(rank));
    }
  }
  make_threads_alike(plan.ranks);
}

void check_can_start(const LaunchPlan& plan) {
  const bool by_mpi = plan.launcher.type == config::LauncherType::kMpi;
  const bool on_one_host = std::all_of(plan.ranks.begin(), plan.ranks.end(),
                                       [&](const RankPlacement& rank) { return rank.host == plan.host; });
  if (on_one_host && (by_mpi || plan.world_size() > 1)) host::check_loopback();
  if (by_mpi) {
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

bool is_of_script(const config::Experiment& experiment) {
  return experiment.hyperparameters.value("batch_size_of_loader", Json()) == Json(true);
}

std::string scaling_advice(const LaunchPlan& plan, bool has_overrides) {
  const config::Experiment& experiment = plan.experiment;
  if (is_of_script(experiment)) return {};  // the batch is not known yet
  std::vector<std::vector<int>> bound;
  for (const RankPlacement& rank : plan.ranks) bound.push_back(rank.cpus);
  const config::BatchAndSlots now{experiment.global_batch_size, plan.world_size(), count_cpus(bound)};
  if (has_overrides) {
    try {
      const config::Experiment file = config::read_experiment(experiment.file);
      if (file.resources.slots_per_trial == 0) return {};  // auto has chosen the number
      std::string advice = config::weak_scaling_advice(
          {file.global_batch_size, file.resources.slots_per_trial, cpus_of_slots(file.resources, plan.cluster)}, now,
          experiment.file.string());
      if (!advice.empty()) return advice;
    } catch (const ConfigError&) {  // the file is complete only with the overrides
    }
  }
  try {
    const RunFolder last = find_run(experiment.name);
    const Json before = read_json(last.plan());
    if (before.at("name") != experiment.name) return {};
    bound.clear();
    for (const Json& rank : before.at("ranks")) bound.push_back(rank.at("cpus").get<std::vector<int>>());
    return config::weak_scaling_advice({before.at("global_batch_size"), before.at("world_size"), count_cpus(bound)},
                                       now, "the run " + last.path.filename().string());
  } catch (const std::exception&) {  // no such run, or an unreadable plan: no reason to refuse training
    return {};
  }
}

scheduler::ClusterAgents find_cluster(const std::filesystem::path& given) {
  return scheduler::find_cluster(given, process_variables(), {}, machine_with_gpus());
}

}  // namespace dtrain::run
