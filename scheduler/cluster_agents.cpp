#include "dtrain/scheduler/cluster_agents.h"

#include <algorithm>

#include "cluster_sources.h"
#include "dtrain/host/network.h"

namespace dtrain::scheduler {
namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

std::string value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

// Returns the UUIDs of all slots' GPUs; empty if any is unknown, because a claim uses either UUIDs or indices.
std::vector<std::string> gpus_of(const ClusterAgent& agent) {
  std::vector<std::string> gpus;
  for (const ClusterSlot& slot : agent.slots) {
    if (slot.index >= 0 && !slot.gpu_uuid.empty()) gpus.push_back(slot.gpu_uuid);
  }
  return static_cast<int>(gpus.size()) == agent.agent.slots ? gpus : std::vector<std::string>();
}

// Returns the user's cluster file, which need not exist; empty: neither variable names its folder.
fs::path users_cluster_file(const Variables& variables) {
  const std::string config = value_of(variables, "XDG_CONFIG_HOME");
  if (config.starts_with('/')) return fs::path(config) / "dtrain" / "cluster.yaml";
  const std::string home = value_of(variables, "HOME");
  if (home.starts_with('/')) return fs::path(home) / ".config" / "dtrain" / "cluster.yaml";
  return {};
}

// Returns the file that describes the cluster; empty: none.
fs::path find_file(const fs::path& given, const Variables& variables) {
  if (!given.empty()) return given;
  if (const std::string named = value_of(variables, "DTRAIN_CLUSTER"); !named.empty()) return named;
  for (const fs::path& file : {fs::path("cluster.yaml"), users_cluster_file(variables)}) {
    std::error_code code;
    if (!file.empty() && fs::exists(file, code)) return file;
  }
  return {};
}

bool wants_gpus_of_slurm(const config::Launcher& launcher, const SlotDefaults& defaults) {
  return defaults.slot_type == config::AgentSlotType::kCuda ||
         (defaults.slot_type == config::AgentSlotType::kAuto && ask_for_gpus(launcher.options));
}

// Adds an agent to the cluster in place of the nodes that Slurm will choose.
ClusterAgent any_node(config::Cluster& cluster, int slots, config::AgentSlotType type) {
  ClusterAgent agent{.agent = {.id = "slurm", .host = "slurm", .slots = std::max(1, slots), .slot_type = type}};
  for (int index = 0; index < agent.agent.slots; ++index) agent.slots.push_back({.index = index});
  cluster.agents.push_back(agent.agent);
  return agent;
}

// Returns the number of CPUs that Slurm counts for a core, from this process's node; 1 if it is on no node.
int cpus_of_a_core(const std::vector<ClusterAgent>& agents, const std::vector<host::Core>& cores) {
  for (const ClusterAgent& agent : agents) {
    if (agent.here && !cores.empty()) return std::max(1, agent.agent.slots / static_cast<int>(cores.size()));
  }
  return 1;
}

}  // namespace

config::Cluster read_cluster_file(const fs::path& file, std::vector<std::string>& warnings) {
  return is_hostfile(file) ? read_hostfile(file, warnings) : config::read_cluster(file);
}

ClusterAgents find_cluster(const fs::path& given, const Variables& variables, const SlotDefaults& defaults,
                           const Machine& machine) {
  ClusterAgents result;
  std::string slurm_node;
  bool of_cores = false;  // true: slots of Slurm's nodes are made of cores
  if (const fs::path file = find_file(given, variables); !file.empty()) {
    result.source = file.string();
    result.file = fs::absolute(file).lexically_normal();
    result.cluster = read_cluster_file(file, result.warnings);
    // Slurm chooses the nodes of a job, and only the job itself can read them.
    const bool leaves_it_to_slurm =
        result.cluster.agents.empty() && result.cluster.launcher.type == config::LauncherType::kSlurm;
    if (auto allocation = leaves_it_to_slurm ? find_slurm_allocation(variables, defaults.slot_type) : std::nullopt) {
      result.source += ", the Slurm allocation " + allocation->job;
      result.cluster.agents = std::move(allocation->cluster.agents);
      slurm_node = allocation->here;
      of_cores = allocation->of_cores;
    } else if (const bool gpus = wants_gpus_of_slurm(result.cluster.launcher, defaults);
               leaves_it_to_slurm && (gpus || defaults.least_slots > 0)) {
      // Slurm will have the slots; this machine, from which the job is submitted, needs none.
      result.declared = false;
      result.agents.push_back(any_node(result.cluster, defaults.least_slots,
                                       gpus ? config::AgentSlotType::kCuda : config::AgentSlotType::kCpu));
      return result;
    }
  } else if (auto allocation = find_slurm_allocation(variables, defaults.slot_type)) {
    result.source = "the Slurm allocation " + allocation->job;
    result.cluster = std::move(allocation->cluster);
    slurm_node = allocation->here;
    of_cores = allocation->of_cores;
  } else {
    result.source = "this machine";
  }
  const host::HostNames names;
  std::vector<config::Agent>& agents = result.cluster.agents;
  result.declared = !agents.empty();
  if (!result.declared) {
    const std::string name = machine.name.empty() ? host::host_identity().name : machine.name;
    agents.push_back({.id = id_of_host(name), .host = name, .slots = 0});
  }
  for (config::Agent& agent : agents) {
    const std::string host =
        agent.host.substr(agent.host.find('@') == std::string::npos ? 0 : agent.host.find('@') + 1);
    const bool here = !result.declared || names.contains(host) || (!slurm_node.empty() && host == slurm_node);
    result.agents.push_back({.agent = agent, .here = here, .of_cores = of_cores});
  }
  result.cores = add_slots_of_this_machine(result.agents, machine, defaults, variables, result.warnings);
  const int cpus_of_core = of_cores ? cpus_of_a_core(result.agents, result.cores) : 1;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    ClusterAgent& agent = result.agents[i];
    if (agent.here) agents[i] = agent.agent;
    const int units = agent.of_cores ? std::max(1, agent.agent.slots / cpus_of_core) : agent.agent.slots;
    for (int index = 0; !agent.here && index < units; ++index) agent.slots.push_back({.index = index});
  }
  return result;
}

std::vector<AgentSlots> empty_slots(const ClusterAgents& cluster) {
  std::vector<AgentSlots> slots;
  slots.reserve(cluster.agents.size());
  for (const ClusterAgent& listed : cluster.agents) {
    const config::Agent& agent = listed.agent;
    slots.push_back({agent.id, agent.slots, agent.slots, agent.resource_pool, agent.slot_type, gpus_of(listed), {}});
    if (!listed.of_cores) continue;
    for (const ClusterSlot& core : listed.slots) {
      slots.back().cores.push_back({core.index, core.node, core.package, core.kind});
    }
    slots.back().free = static_cast<int>(listed.slots.size());
  }
  return slots;
}

}  // namespace dtrain::scheduler
