#include "cluster_sources.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "dtrain/base/text.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/gpus.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "dtrain/scheduler/core_groups.h"

namespace dtrain::scheduler {
namespace {

using config::AgentSlotType;

struct CoresHere {
  std::vector<host::Core> cores;
  std::vector<std::vector<int>> cpus;  // of each core
  std::size_t number_of_cpus = 0;
  double limit = 0;  // CPUs' worth of time that the cgroup grants

  // Returns the cores' worth of time that the cgroup grants: at least 1.
  int granted() const { return std::max(1, std::min(static_cast<int>(cores.size()), static_cast<int>(limit + 0.01))); }
  bool is_limited() const { return host::threads_granted(limit, number_of_cpus, 1).has_value(); }
  // Returns a slot with these CPUs if `slots` slots share the time.
  ClusterSlot slot_with(std::vector<int> of_slot, int slots) const {
    ClusterSlot slot{.cpus = std::move(of_slot)};
    slot.cores = count_cores(cpus, slot.cpus);
    const auto granted = host::threads_granted(limit, number_of_cpus, slots);
    const host::RankThreads threads = host::threads_on(slot.cores, slot.cpus.size(), granted);
    slot.threads = threads.threads;
    slot.most_threads = threads.most_threads;
    return slot;
  }
};

std::string as_text(double cpus) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", cpus);
  return text;
}

// Gives the GPUs in their order to the agents in theirs; the first agent also lists the GPUs that are no slots.
void hand_out_gpus(const std::vector<ClusterAgent*>& agents, const std::vector<ClusterSlot>& gpus,
                   std::vector<std::string>& warnings) {
  const auto end = std::find_if(gpus.begin(), gpus.end(), [](const ClusterSlot& slot) { return slot.index < 0; });
  auto next = gpus.begin();
  for (ClusterAgent* agent : agents) {
    const auto left = static_cast<int>(end - next);
    const int declared = agent->agent.slots;
    agent->agent.slots = declared == 0 ? left : std::min(declared, left);
    for (int index = 0; index < agent->agent.slots; ++index) {
      agent->slots.push_back(*next++);
      agent->slots.back().index = index;
    }
    if (declared > left) {
      warnings.push_back("agent " + agent->agent.id + " declares " + std::to_string(declared) +
                         " GPU slots, but there are only " + std::to_string(left) + " healthy GPUs for it");
    }
  }
  agents.front()->slots.insert(agents.front()->slots.end(), end, gpus.end());
}

// Warns if there are more slots than cores, or more than the CPUs that the cgroup grants.
void warn_of_sharing(const CoresHere& here, int slots, std::vector<std::string>& warnings) {
  const LocalSlots divided = divide_cores(here.cpus, slots);
  if (!divided.warning.empty()) {
    warnings.push_back(divided.warning);
  } else if (here.is_limited() && slots > here.granted()) {
    warnings.push_back("oversubscribed: " + std::to_string(slots) + " slots, but the cgroup grants " +
                       as_text(here.limit) + " CPUs: slots share them and slow each other down");
  }
}

void hand_out_cores(const std::vector<ClusterAgent*>& agents, const CoresHere& here,
                    std::vector<std::string>& warnings) {
  int total = 0;
  for (const ClusterAgent* agent : agents) total += agent->agent.slots;
  LocalSlots divided = divide_cores(here.cpus, total);
  warn_of_sharing(here, total, warnings);
  auto next = divided.slots.begin();
  for (ClusterAgent* agent : agents) {
    for (int index = 0; index < agent->agent.slots; ++index, ++next) {
      agent->slots.push_back(here.slot_with(std::move(next->cpus), total));
      agent->slots.back().index = index;
    }
  }
}

// Gives the agent its cores, or shares of them: as many as the cgroup grants cores' worth of time, or Slurm CPUs.
void give_cores(ClusterAgent& agent, const CoresHere& here, int least, std::vector<std::string>& warnings) {
  const int allocated = agent.agent.slots;
  const int granted = allocated > 0 ? std::min(allocated, here.granted()) : here.granted();
  std::vector<CoreUnit> units;
  for (const host::Core& core : here.cores) units.push_back(unit_of(core));
  CoreGroups shares;
  if (std::cmp_less(granted, units.size())) {
    shares = divide_cores_evenly(units, granted);
  } else {
    for (const CoreUnit& unit : units) shares.push_back({unit.number});
  }
  for (const std::vector<int>& share : shares) {
    const auto first = std::find_if(here.cores.begin(), here.cores.end(), [&](const host::Core& core) {
      return std::binary_search(share.begin(), share.end(), core.number);
    });
    ClusterSlot unit = here.slot_with(cpus_of(here.cores, share), granted);
    unit.index = std::cmp_less(granted, units.size()) ? static_cast<int>(agent.slots.size()) : share.front();
    unit.node = first->node;
    unit.package = first->package;
    unit.kind = first->kind;
    agent.slots.push_back(std::move(unit));
  }
  if (least > granted) warn_of_sharing(here, least, warnings);
  agent.agent.slots = std::max({granted, least, allocated});
}

CoresHere cores_here(const Machine& machine) {
  CoresHere here{.cores = machine.cores ? *machine.cores : host::usable_cores(machine.topology),
                 .limit = machine.cpu_limit ? *machine.cpu_limit : host::cpu_limit()};
  for (const host::Core& core : here.cores) {
    here.cpus.push_back(core.cpus);
    here.number_of_cpus += core.cpus.size();
  }
  return here;
}

using Cores = std::vector<std::vector<int>>;

std::vector<host::GpuInfo> look_at_gpus(const Machine& machine, std::vector<std::string>& warnings) {
  if (machine.gpus) return *machine.gpus;
  if (machine.look_at_gpus) return machine.look_at_gpus(warnings);
  return host::Gpus(host::kNvmlLibrary, [&](const std::string& text) { warnings.push_back(text); }).list();
}

std::string name_of(const host::GpuInfo& gpu) {
  return "GPU " + std::to_string(gpu.index);
}

ClusterSlot slot_on(const host::VisibleGpu& gpu, int index) {
  ClusterSlot slot{.index = index, .gpu_uuid = gpu.id, .gpu_name = gpu.name()};
  if (gpu.info) {
    slot.gpu = gpu.info->index;
    slot.gpu_uuid = gpu.info->uuid;
    slot.gpu_memory = gpu.info->total_memory;
    slot.problem = gpu.info->problem;
  } else if (gpu.instance) {
    slot.gpu_memory = gpu.instance->total_memory;
  }
  return slot;
}

// Returns the cores near a GPU; all cores if the kernel does not report them, or if this process may use none of them.
Cores cores_near(const host::GpuInfo& gpu, const Machine& machine, const Cores& all,
                 std::vector<std::string>& warnings) {
  const std::vector<int> reported = host::cpus_near_pci_device(gpu.pci_address, machine.root);
  const std::set<int> near(reported.begin(), reported.end());
  Cores cores;
  for (const std::vector<int>& core : all) {
    if (std::any_of(core.begin(), core.end(), [&](int cpu) { return near.contains(cpu); })) cores.push_back(core);
  }
  if (!cores.empty()) return cores;
  if (!near.empty()) {
    warnings.push_back(name_of(gpu) + " is near cores that this process may not use (of its NUMA node, with the CPUs " +
                       std::to_string(*near.begin()) + " to " + std::to_string(*near.rbegin()) +
                       "): its rank runs on other cores, farther from it");
  }
  return all;
}

// Gives each slot its share of the cores. Slots of MIG instances, whose GPU is not known, share all cores.
void hand_out_near_cores(std::vector<ClusterSlot>& slots, const std::vector<host::GpuInfo>& gpus,
                         const Machine& machine, std::vector<std::string>& warnings) {
  const CoresHere here = cores_here(machine);
  std::map<Cores, std::vector<int>> near;  // the healthy GPUs near these cores, by NVML's index
  int total = 0;
  for (const host::GpuInfo& gpu : gpus) {
    if (!gpu.problem.empty()) continue;
    near[cores_near(gpu, machine, here.cpus, warnings)].push_back(gpu.index);
    ++total;
  }
  std::vector<ClusterSlot*> instances;
  for (ClusterSlot& slot : slots) {
    if (slot.index >= 0 && slot.gpu < 0) instances.push_back(&slot);
  }
  const auto give = [&](ClusterSlot& slot, std::vector<int> cpus, int among) {
    const ClusterSlot of_cores = here.slot_with(std::move(cpus), among);
    slot.cpus = of_cores.cpus;
    slot.cores = of_cores.cores;
    slot.threads = of_cores.threads;
    slot.most_threads = of_cores.most_threads;
  };
  if (!instances.empty()) {
    LocalSlots divided = divide_cores(here.cpus, static_cast<int>(instances.size()));
    for (std::size_t i = 0; i < instances.size(); ++i) {
      give(*instances[i], std::move(divided.slots[i].cpus), static_cast<int>(instances.size()));
    }
  }
  for (const auto& [cores, indices] : near) {
    LocalSlots divided = divide_cores(cores, static_cast<int>(indices.size()));
    int used = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      for (ClusterSlot& slot : slots) {
        if (slot.index < 0 || slot.gpu != indices[i]) continue;
        give(slot, divided.slots[i].cpus, total);
        ++used;
      }
    }
    if (used < 2 || divided.warning.empty()) continue;
    warnings.push_back("oversubscribed: " + std::to_string(indices.size()) + " GPUs on " +
                       count_of(cores.size(), "core") +
                       " near them: ranks on them share cores and slow each other down");
  }
}

}  // namespace

std::vector<host::Core> add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine,
                                                  const SlotDefaults& defaults,
                                                  const std::map<std::string, std::string>& variables,
                                                  std::vector<std::string>& warnings) {
  std::vector<ClusterAgent*> here;
  for (ClusterAgent& agent : agents) {
    if (agent.here) here.push_back(&agent);
  }
  const bool undecided =
      std::any_of(here.begin(), here.end(), [](auto* agent) { return agent->agent.slot_type == AgentSlotType::kAuto; });
  const bool wants_gpus =
      std::any_of(here.begin(), here.end(), [](auto* agent) { return agent->agent.slot_type == AgentSlotType::kCuda; });
  std::vector<ClusterSlot> gpus;
  if (wants_gpus || (undecided && defaults.slot_type != AgentSlotType::kCpu)) {
    gpus = find_gpu_slots(machine, variables, warnings);
  }
  std::vector<ClusterAgent*> of_gpus;
  std::vector<ClusterAgent*> declared;
  std::vector<ClusterAgent*> of_cores;
  for (ClusterAgent* agent : here) {
    AgentSlotType& type = agent->agent.slot_type;
    if (type == AgentSlotType::kAuto) type = defaults.slot_type;
    if (type == AgentSlotType::kAuto) type = gpus.empty() ? AgentSlotType::kCpu : AgentSlotType::kCuda;
    if (type == AgentSlotType::kCuda) agent->of_cores = false;
    if (type == AgentSlotType::kCpu && agent->agent.slots == 0) agent->of_cores = true;
    (type == AgentSlotType::kCuda ? of_gpus : agent->of_cores ? of_cores : declared).push_back(agent);
  }
  if (!of_gpus.empty()) hand_out_gpus(of_gpus, gpus, warnings);
  if (here.empty()) return {};
  const CoresHere cores = cores_here(machine);
  if (!declared.empty()) hand_out_cores(declared, cores, warnings);
  for (ClusterAgent* agent : of_cores) {
    give_cores(*agent, cores, agent->agent.slots == 0 ? defaults.least_slots : 0, warnings);
  }
  return cores.cores;
}

std::vector<ClusterSlot> find_gpu_slots(const Machine& machine, const std::map<std::string, std::string>& variables,
                                        std::vector<std::string>& warnings) {
  const std::vector<host::GpuInfo> all = look_at_gpus(machine, warnings);
  const auto variable = variables.find("CUDA_VISIBLE_DEVICES");
  const auto value = variable == variables.end() ? std::nullopt : std::optional(variable->second);
  const std::vector<host::VisibleGpu> visible = host::visible_gpus(all, value);
  if (value && host::is_order_unknown(all, variables)) {
    warnings.push_back("CUDA_VISIBLE_DEVICES=" + *value +
                       " is read as nvidia-smi numbers the GPUs; CUDA itself puts the fastest first, unless "
                       "CUDA_DEVICE_ORDER is PCI_BUS_ID");
  }
  std::vector<ClusterSlot> slots;
  std::vector<ClusterSlot> others;
  for (const host::VisibleGpu& gpu : visible) {
    if (gpu.info && !gpu.info->problem.empty()) {
      others.push_back(slot_on(gpu, -1));
      warnings.push_back(name_of(*gpu.info) + " is no slot: " + gpu.info->problem);
    } else {
      slots.push_back(slot_on(gpu, static_cast<int>(slots.size())));
    }
  }
  if (!slots.empty()) hand_out_near_cores(slots, all, machine, warnings);
  slots.insert(slots.end(), others.begin(), others.end());
  return slots;
}

}  // namespace dtrain::scheduler
