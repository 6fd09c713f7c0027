#include "machine_slots.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dtrain/host/cpu.h"
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

// GPUs in their order to agents in theirs; what is no slot is listed with the first of them.
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

void hand_out_cores(const std::vector<ClusterAgent*>& agents, const Machine& machine, int least,
                    std::vector<std::string>& warnings) {
  const CoresHere here = cores_here(machine);
  const int granted = std::max(1, std::min(static_cast<int>(here.cores.size()), static_cast<int>(here.limit + 0.01)));
  int total = 0;
  for (ClusterAgent* agent : agents) {
    if (agent->agent.slots == 0) agent->agent.slots = std::max(granted, least);
    total += agent->agent.slots;
  }
  LocalSlots divided = divide_cores(here.cores, total);
  if (!divided.warning.empty()) {
    warnings.push_back(divided.warning);
  } else if (here.limited && total > granted) {
    warnings.push_back("oversubscribed: " + std::to_string(total) + " slots, but the cgroup grants " +
                       as_text(here.limit) + " CPUs: slots share them and slow each other down");
  }
  auto next = divided.slots.begin();
  for (ClusterAgent* agent : agents) {
    for (int index = 0; index < agent->agent.slots; ++index, ++next) {
      ClusterSlot slot;
      slot.index = index;
      slot.cpus = std::move(next->cpus);
      slot.threads = here.threads(slot.cpus, total);
      agent->slots.push_back(std::move(slot));
    }
  }
}

}  // namespace

CoresHere cores_here(const Machine& machine) {
  CoresHere here{.cores = machine.cores ? *machine.cores : host::physical_cores(),
                 .limit = machine.cpu_limit ? *machine.cpu_limit : host::cpu_limit()};
  double cpus = 0;
  for (const std::vector<int>& core : here.cores) cpus += static_cast<double>(core.size());
  here.limited = here.limit < cpus - 0.01;
  return here;
}

int CoresHere::threads(const std::vector<int>& cpus, int slots) const {
  const auto all = static_cast<int>(cpus.size());
  return limited ? std::clamp(static_cast<int>(limit / slots), 1, all) : all;
}

void add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine, const SlotDefaults& defaults,
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
  std::vector<ClusterAgent*> of_cores;
  for (ClusterAgent* agent : here) {
    AgentSlotType& type = agent->agent.slot_type;
    if (type == AgentSlotType::kAuto) type = defaults.slot_type;
    if (type == AgentSlotType::kAuto) type = gpus.empty() ? AgentSlotType::kCpu : AgentSlotType::kCuda;
    (type == AgentSlotType::kCuda ? of_gpus : of_cores).push_back(agent);
  }
  if (!of_gpus.empty()) hand_out_gpus(of_gpus, gpus, warnings);
  if (!of_cores.empty()) hand_out_cores(of_cores, machine, defaults.least_slots, warnings);
}

}  // namespace dtrain::scheduler
