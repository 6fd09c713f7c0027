#include "machine_slots.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "dtrain/host/cpu.h"
#include "dtrain/scheduler/core_groups.h"
#include "dtrain/scheduler/gpu_slots.h"
#include "dtrain/scheduler/local_slots.h"

namespace dtrain::scheduler {
namespace {

using config::AgentSlotType;

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
  } else if (here.limited && slots > here.granted()) {
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

}  // namespace

CoresHere cores_here(const Machine& machine) {
  CoresHere here{.cores = machine.cores ? *machine.cores : host::usable_cores(machine.topology),
                 .limit = machine.cpu_limit ? *machine.cpu_limit : host::cpu_limit()};
  double cpus = 0;
  for (const host::Core& core : here.cores) {
    here.cpus.push_back(core.cpus);
    cpus += static_cast<double>(core.cpus.size());
  }
  here.limited = here.limit < cpus - 0.01;
  return here;
}

int CoresHere::granted() const {
  return std::max(1, std::min(static_cast<int>(cores.size()), static_cast<int>(limit + 0.01)));
}

ClusterSlot CoresHere::slot_with(std::vector<int> of_slot, int slots) const {
  ClusterSlot slot{.cpus = std::move(of_slot)};
  slot.cores = count_cores(cpus, slot.cpus);
  slot.threads = limited ? std::clamp(static_cast<int>(limit / slots), 1, slot.cores) : slot.cores;
  slot.most_threads = limited ? slot.threads : static_cast<int>(slot.cpus.size());
  return slot;
}

std::vector<host::Core> add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine,
                                                  const SlotDefaults& defaults,
                                                  const std::map<std::string, std::string>& variables,
                                                  std::vector<std::string>& warnings) {
  std::vector<ClusterAgent*> here;
  for (ClusterAgent& agent : agents) {
    if (agent.here) here.push_back(&agent);
  }
  const bool undecided =
      std::any_of(here.begin(), here.end(), [](auto* one) { return one->agent.slot_type == AgentSlotType::kAuto; });
  const bool wants_gpus =
      std::any_of(here.begin(), here.end(), [](auto* one) { return one->agent.slot_type == AgentSlotType::kCuda; });
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

}  // namespace dtrain::scheduler
