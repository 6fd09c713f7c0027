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
#include "dtrain/scheduler/core_groups.h"
#include "entrypoint.h"

namespace dtrain::launcher {

namespace {

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
    const auto seen = rank::look_at_gpus(rank::kGpuPatienceOfRuns);
    if (!seen) {
      warnings.push_back("NVIDIA's driver does not answer within " + std::to_string(rank::kGpuPatienceOfRuns.count()) +
                         " s, so this machine's GPUs are no slots; dmesg says why");
      return std::vector<host::GpuInfo>();
    }
    warnings.insert(warnings.end(), seen->warnings.begin(), seen->warnings.end());
    return seen->gpus;
  };
  return machine;
}

rank::Variables gpu_variables(const PlacedLaunch& placed) {
  std::vector<std::string> gpus;
  for (const rank::RankPlacement& rank : placed.ranks) {
    if (rank.host == placed.host && rank.gpu) gpus.push_back(rank.gpu->id());
  }
  return {{"CUDA_VISIBLE_DEVICES", join(gpus, ",")}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}};
}

std::string gpus_variable(const PlacedLaunch& placed) {
  std::map<std::string, std::size_t> hosts;
  std::vector<std::string> parts;
  for (const rank::RankPlacement& rank : placed.ranks) {
    const std::size_t host = hosts.try_emplace(rank.host, hosts.size()).first->second;
    const auto* const agent = placed.find_agent(rank.agent);
    const int before = agent ? gpus_before(*agent, placed) : 0;
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
        std::find_if(agents.begin(), agents.end(), [&](const auto& slots) { return slots.id == share.agent; });
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

const scheduler::ClusterAgent& agent_named(const std::string& id, const ChosenSlots& slots) {
  if (const auto* const agent = slots.find_agent(id)) return *agent;
  throw Error("there is no agent '" + id + "' in the cluster");
}

scheduler::ClusterAgents cluster_for(const config::Experiment& experiment, config::AgentSlotType slot_default,
                                     const std::filesystem::path& file, rank::Variables variables,
                                     const scheduler::Machine& machine) {
  // The ranks' own variables decide which GPUs they see.
  for (const auto& [name, value] : experiment.variables_of_ranks(true)) {
    if (name == "CUDA_VISIBLE_DEVICES" || name == "CUDA_DEVICE_ORDER") variables[name] = value;
  }
  const scheduler::SlotDefaults defaults{.slot_type = slot_default,
                                         .least_slots = experiment.resources.slots_per_trial};
  return scheduler::find_cluster(file, variables, defaults, machine);
}

// Returns the type of slots that the experiment asks for.
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

// Returns the type of the slots on which the experiment is placed. auto: kCuda if its resource pool has agents of GPUs,
// else kCpu.
config::AgentSlotType decide_slot_type(const config::Experiment& experiment, const scheduler::ClusterAgents& cluster) {
  const config::AgentSlotType asked = asked_slot_type(experiment);
  if (asked != config::AgentSlotType::kAuto) return asked;
  const bool has_gpus = std::any_of(cluster.agents.begin(), cluster.agents.end(), [&](const auto& agent) {
    return agent.agent.resource_pool == experiment.resources.resource_pool &&
           agent.agent.slot_type == config::AgentSlotType::kCuda;
  });
  return has_gpus ? config::AgentSlotType::kCuda : config::AgentSlotType::kCpu;
}

// ConfigError if the experiment has keys that the devices chosen by slot_type: auto do not support.
void check_devices_support(const config::Experiment& experiment, bool on_gpus) {
  const auto refusals = on_gpus ? config::refusals_on_gpus(experiment) : config::refusals_on_cpus(experiment);
  if (refusals.empty()) return;
  throw ConfigError(experiment.file.string() + ": " + refusals.front().key + ": " + refusals.front().why,
                    std::string("resources.slot_type is auto, and there are ") + (on_gpus ? "GPUs" : "no GPUs"));
}

// Returns lines that are added to the refusal of an experiment that never fits on GPU slots: the warnings of the
// cluster, or that this machine has no visible GPU.
std::string refusal_on_gpus(const scheduler::ClusterAgents& cluster) {
  std::string text;
  for (const std::string& warning : cluster.warnings) text += "\n  " + warning;
  const auto& agents = cluster.agents;
  const bool here = std::any_of(agents.begin(), agents.end(), [](const auto& agent) { return agent.here; });
  const bool has_gpu = std::any_of(agents.begin(), agents.end(), [](const scheduler::ClusterAgent& agent) {
    return std::any_of(agent.slots.begin(), agent.slots.end(), [](const auto& slot) { return slot.is_gpu(); });
  });
  if (here && !has_gpu && cluster.warnings.empty()) {
    text += "\n  this machine: NVIDIA's driver (NVML) reports no GPU, or CUDA_VISIBLE_DEVICES hides all of them";
  }
  return text;
}

// Returns the experiment's request to the scheduler, for slots of this type.
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

// True if an experiment that fits on no GPUs would fit on cores.
bool fits_on_cores(const config::Experiment& experiment, const std::filesystem::path& cluster_file,
                   const rank::Variables& variables, const scheduler::Machine& machine) {
  constexpr auto kCpu = config::AgentSlotType::kCpu;
  const scheduler::ClusterAgents cluster = cluster_for(experiment, kCpu, cluster_file, variables, machine);
  const scheduler::SlotRequest request = slot_request(experiment, cluster.cluster.scheduler, kCpu);
  return scheduler::place(scheduler::empty_slots(cluster), request).has_value();
}

// Returns the reason why libtorch cannot use the GPUs that were chosen for ranks on this machine. Empty: it can use
// them, or the launcher is not local.
std::string why_no_cuda_here(const config::Experiment& experiment, const ChosenSlots& chosen,
                             const rank::Variables& variables) {
  if (!chosen.on_gpus() || chosen.launcher().type != config::LauncherType::kLocal) return {};
  rank::Variables of_a_rank = variables;
  for (const auto& [name, value] : experiment.variables_of_ranks(true)) of_a_rank[name] = value;
  const std::filesystem::path program = find_entrypoint(experiment, variables);
  const std::string library_path = rank::find_libraries(program, of_a_rank);
  const auto given = of_a_rank.find("LD_LIBRARY_PATH");
  return rank::why_no_cuda(program, !library_path.empty()      ? library_path
                                    : given == of_a_rank.end() ? ""
                                                               : given->second);
}

// ConfigError: the experiment asks for more cores than a declared slot has, on an agent where it is placed.
void check_slots_have_cores(const ChosenSlots& chosen, const scheduler::Placement& placement) {
  const int wanted = chosen.request.cores_per_slot;
  for (const scheduler::AgentShare& share : placement) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, chosen);
    if (agent.of_cores) continue;
    for (const scheduler::ClusterSlot& slot : agent.slots) {
      if (slot.index < 0 || slot.cpus.empty() || slot.cores >= wanted) continue;
      throw ConfigError("resources.cores_per_slot is " + std::to_string(wanted) + ", but slot " +
                            std::to_string(slot.index) + " of agent " + share.agent + " (" + chosen.cluster.source +
                            ") has " + count_of(slot.cores, "core"),
                        "use at most " + std::to_string(slot.cores) + ", or auto for all cores of the slot");
    }
  }
}

// Keeps only the first cores of a rank's slot, if cores_per_slot gives their number.
void keep_first_cores(rank::RankPlacement& rank, const LaunchPlan& plan) {
  const int wanted = plan.request.cores_per_slot;
  if (wanted == 0 || rank.cpus.empty()) return;
  rank.cpus = scheduler::first_cores(scheduler::cpus_of(plan.cluster.cores), rank.cpus, wanted);
  const bool all_cpus = rank.most_threads > rank.threads;
  rank.cores = std::min(rank.cores, wanted);
  rank.threads = std::min(rank.threads, rank.cores);
  rank.most_threads = all_cpus ? static_cast<int>(rank.cpus.size()) : rank.threads;
}

// Copies cores, threads and GPU of the rank's slot, if the slot is on this machine.
void take_slot(rank::RankPlacement& rank, const LaunchPlan& plan, const scheduler::ClusterAgent& agent) {
  const auto slot = std::find_if(agent.slots.begin(), agent.slots.end(),
                                 [&](const scheduler::ClusterSlot& candidate) { return candidate.index == rank.slot; });
  if (slot == agent.slots.end()) return;
  rank.cpus = slot->cpus;
  rank.cores = slot->cores;
  rank.threads = slot->threads;
  rank.most_threads = slot->most_threads;
  if (slot->is_gpu()) rank.gpu = rank::PlacedGpu{slot->gpu, slot->gpu_uuid, slot->gpu_name};
  keep_first_cores(rank, plan);
}

// Sets the cores of slot `i` of the share if the cgroup grants less time than cores: the kernel chooses which cores
// spend the time, so a slot keeps within a node that has a core for each of its threads.
void take_limited_cores(rank::RankPlacement& rank, const scheduler::ClusterAgents& cluster,
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
void take_cores(rank::RankPlacement& rank, const scheduler::SlotRequest& request,
                const scheduler::ClusterAgents& cluster, const scheduler::ClusterAgent& agent,
                const scheduler::ClaimedShare& share, std::size_t i) {
  const std::vector<int>& numbers = share.cores[i];
  if (!agent.here) {  // `dtrain start-rank` finds them on their host
    rank.cores = static_cast<int>(numbers.size());
    return;
  }
  const auto cpus = scheduler::cpus_of(cluster.cores);
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

// Gives all ranks as many threads as the rank with the fewest: with unlike numbers they would wait for each other, and
// the bits of a run would depend on which rank has which cores.
void make_threads_alike(std::vector<rank::RankPlacement>& ranks) {
  std::vector<host::RankThreads> threads;
  for (const rank::RankPlacement& rank : ranks) threads.push_back({rank.threads, rank.most_threads});
  const host::RankThreads least = host::threads_of_all(threads);
  for (rank::RankPlacement& rank : ranks) {
    if (rank.threads == 0) continue;
    rank.threads = least.threads;
    rank.most_threads = least.most_threads;
  }
}

// Adds warnings of GPUs of this machine on which other processes compute. ConfigError if such a GPU admits only one
// process. With other launchers than local the ranks look themselves, each on its host.
void check_gpus_are_free(PlacedLaunch& placed) {
  if (!placed.on_gpus() || placed.launcher().type != config::LauncherType::kLocal) return;
  const auto is_here = [](const rank::RankPlacement& rank) { return rank.gpu && rank.gpu->index >= 0; };
  if (std::none_of(placed.ranks.begin(), placed.ranks.end(), is_here)) return;
  const auto setups = rank::look_at_gpu_setups(rank::kGpuPatienceOfRuns);
  if (!setups) return;
  for (const rank::RankPlacement& rank : placed.ranks) {
    if (!is_here(rank)) continue;
    const auto setup = std::find_if(setups->gpus.begin(), setups->gpus.end(),
                                    [&](const host::GpuSetup& gpu) { return gpu.index == rank.gpu->index; });
    if (setup == setups->gpus.end()) continue;
    const rank::GpuUse use = rank::use_of_gpu(*setup, text_of(*rank.gpu), {});
    if (!use.refusal.empty()) throw ConfigError(use.refusal, use.remedy);
    if (!use.warning.empty()) placed.warnings.push_back(use.warning);
  }
}

// ConfigError: there are several ranks, and one is on a MIG instance.
void refuse_ranks_on_instances(const PlacedLaunch& placed) {
  const auto is_instance = [](const rank::RankPlacement& rank) {
    return rank.gpu && rank.gpu->uuid.starts_with("MIG-");
  };
  if (placed.ranks.size() < 2 || std::ranges::none_of(placed.ranks, is_instance)) return;
  throw ConfigError("resources.slots_per_trial is " + std::to_string(placed.ranks.size()) +
                        ", but slots are parts of GPUs (MIG instances), and NCCL does not connect these",
                    "use slots_per_trial: 1, in a run for each instance, or end MIG mode: sudo nvidia-smi -mig 0");
}

// Chooses the network of the ranks if they have several hosts. Adds a warning if several networks are common.
void settle_network(PlacedLaunch& placed, const RemoteCommand& remote) {
  std::vector<std::string> hosts;  // as the remote shell names them; "" is this host
  for (const scheduler::AgentShare& share : placed.placement) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, placed);
    hosts.push_back(agent.here ? "" : agent.agent.host);
  }
  if (std::all_of(hosts.begin(), hosts.end(), [](const std::string& host) { return host.empty(); })) return;
  placed.network = choose_network({.hosts = hosts,
                                   .wanted = placed.cluster.cluster.network_interface,
                                   .source = placed.cluster.source,
                                   .remote = remote});
  const std::string warning = several_networks_warning(placed.network);
  if (!warning.empty()) placed.warnings.push_back(warning);
}

}  // namespace

std::vector<rank::RankPlacement> ranks_on(const LaunchPlan& plan, const scheduler::Claim& claim) {
  std::vector<rank::RankPlacement> ranks;
  for (const scheduler::ClaimedShare& share : claim) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, plan);
    for (std::size_t i = 0; i < share.slots.size(); ++i) {
      rank::RankPlacement rank{.rank = static_cast<int>(ranks.size()),
                               .host = agent.here ? plan.host : agent.agent.host,
                               .agent = share.agent,
                               .slot = share.slots[i]};
      if (share.cores.empty()) {
        take_slot(rank, plan, agent);
      } else {
        take_cores(rank, plan.request, plan.cluster, agent, share, i);
      }
      ranks.push_back(std::move(rank));
    }
  }
  make_threads_alike(ranks);
  return ranks;
}

const scheduler::ClusterAgent* ChosenSlots::find_agent(const std::string& id) const {
  const auto is_it = [&](const scheduler::ClusterAgent& agent) { return agent.agent.id == id; };
  const auto found = std::find_if(cluster.agents.begin(), cluster.agents.end(), is_it);
  return found == cluster.agents.end() ? nullptr : &*found;
}

bool PlacedLaunch::is_on_this_host() const {
  return std::all_of(ranks.begin(), ranks.end(), [this](const rank::RankPlacement& rank) { return rank.host == host; });
}

ChosenSlots choose_slots(const config::Experiment& experiment, const std::filesystem::path& cluster_file,
                         const rank::Variables& variables, const std::optional<scheduler::Machine>& given) {
  const scheduler::Machine machine = given ? *given : machine_with_gpus();
  ChosenSlots chosen;
  const auto choose = [&](const config::Experiment& wanted) {
    chosen.cluster = cluster_for(wanted, asked_slot_type(wanted), cluster_file, variables, machine);
    chosen.request = slot_request(wanted, chosen.cluster.cluster.scheduler, decide_slot_type(wanted, chosen.cluster));
  };
  choose(experiment);
  chosen.why_no_cuda = why_no_cuda_here(experiment, chosen, variables);
  if (!chosen.why_no_cuda.empty()) {
    if (experiment.resources.slot_type == config::SlotType::kCuda) {
      throw ConfigError("resources.slot_type is cuda, but " + chosen.why_no_cuda,
                        "install the full libtorch (dtrain doctor names what is missing), or train on CPUs with "
                        "resources.slot_type: cpu");
    }
    config::Experiment on_cores = experiment;
    on_cores.resources.slot_type = config::SlotType::kCpu;
    choose(on_cores);
  }
  check_devices_support(experiment, chosen.on_gpus());
  const std::vector<scheduler::AgentSlots> agents = scheduler::empty_slots(chosen.cluster);
  const auto placement = scheduler::place(agents, chosen.request);
  if (!placement) {
    const auto refusal = scheduler::never_fits(agents, chosen.request, experiment.global_batch_size);
    if (!refusal) throw Error("the slots fit on no agent, and no rule explains it: this is a bug in dtrain");
    std::string text = chosen.cluster.source + ": " + refusal->text();
    std::string remedy = refusal->remedy;
    if (chosen.on_gpus()) {
      text += refusal_on_gpus(chosen.cluster);
      if (fits_on_cores(experiment, cluster_file, variables, machine))
        remedy += "; or train on CPUs with resources.slot_type: cpu";
    }
    throw ConfigError(text, remedy);
  }
  check_slots_have_cores(chosen, *placement);
  chosen.first_slots = first_slots(*placement, agents, chosen.request);
  return chosen;
}

PlacedLaunch place_launch(const LaunchPlan& plan, const scheduler::Claim& claim, const rank::Variables& variables,
                          const LookAtHosts* look, const KeysOfRun& of_run) {
  PlacedLaunch placed{plan, of_run};
  for (const scheduler::ClaimedShare& share : claim) {
    placed.placement.push_back({share.agent, static_cast<int>(share.slots.size())});
  }
  placed.ranks = ranks_on(plan, claim);
  refuse_ranks_on_instances(placed);
  if (look) check_gpus_are_free(placed);
  if (look && look->remote) {
    if (plan.launcher().type != config::LauncherType::kLocal) settle_network(placed, look->remote);
    settle_limits(placed, look->remote, variables, look->say);
  } else {
    recall_threads(placed, variables);
  }
  return placed;
}

void check_can_start(const PlacedLaunch& placed) {
  const bool by_mpi = placed.launcher().type == config::LauncherType::kMpi;
  if (placed.is_on_this_host() && (by_mpi || placed.world_size() > 1)) host::check_loopback();
  if (by_mpi) {
    if (!rank::find_program("mpirun", {}, rank::process_variables()).empty()) return;
    throw ConfigError(placed.cluster.source + ": launcher: mpi needs mpirun, which is not in PATH",
                      "install Open MPI on every host (apt install openmpi-bin)");
  }
  if (placed.launcher().type == config::LauncherType::kSlurm) {
    if (!rank::find_program("srun", {}, rank::process_variables()).empty()) return;
    throw ConfigError(placed.cluster.source + ": launcher: slurm needs srun and sbatch, which are not in PATH",
                      "install Slurm's commands (apt install slurm-client), or start it where they are");
  }
  for (const scheduler::AgentShare& share : placed.placement) {
    const scheduler::ClusterAgent& agent = agent_named(share.agent, placed);
    if (agent.here) continue;
    throw ConfigError(placed.cluster.source + ": the ranks of agent " + share.agent + " belong on the host " +
                          agent.agent.host + ", but launcher: local starts ranks on this machine alone",
                      "launcher: mpi in the cluster file starts them there");
  }
}

scheduler::ClusterAgents find_cluster(const std::filesystem::path& given) {
  return scheduler::find_cluster(given, rank::process_variables(), {}, machine_with_gpus());
}

}  // namespace dtrain::launcher
