#include "machine_slots.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dtrain/host/cpu.h"
#include "dtrain/scheduler/local_slots.h"

namespace dtrain::scheduler {
namespace {

using config::AgentSlotType;

std::vector<host::GpuInfo> look_at_gpus(std::vector<std::string>& warnings) {
  return host::Gpus(host::kNvmlLibrary, [&](const std::string& text) { warnings.push_back(text); }).list();
}

ClusterSlot gpu_slot(const host::GpuInfo& gpu, int index) {
  ClusterSlot slot;
  slot.index = index;
  slot.gpu = gpu.index;
  slot.gpu_uuid = gpu.uuid;
  slot.gpu_name = gpu.name;
  slot.gpu_memory = gpu.total_memory;
  slot.problem = gpu.problem;
  return slot;
}

std::string as_text(double cpus) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", cpus);
  return text;
}

// GPUs in their order to agents in theirs; what is not healthy is listed with the first of them, as no slot.
void hand_out_gpus(const std::vector<ClusterAgent*>& agents, const std::vector<host::GpuInfo>& gpus,
                   std::vector<std::string>& warnings) {
  std::vector<host::GpuInfo> healthy;
  std::vector<host::GpuInfo> others;
  for (const host::GpuInfo& gpu : gpus) (gpu.problem.empty() ? healthy : others).push_back(gpu);
  auto next = healthy.begin();
  for (ClusterAgent* agent : agents) {
    const auto left = static_cast<int>(healthy.end() - next);
    const int declared = agent->agent.slots;
    agent->agent.slots = declared == 0 ? left : std::min(declared, left);
    for (int index = 0; index < agent->agent.slots; ++index) agent->slots.push_back(gpu_slot(*next++, index));
    if (declared > left) {
      warnings.push_back("agent " + agent->agent.id + " declares " + std::to_string(declared) +
                         " GPU slots, but there are only " + std::to_string(left) + " healthy GPUs for it");
    }
  }
  for (const host::GpuInfo& gpu : others) {
    agents.front()->slots.push_back(gpu_slot(gpu, -1));
    warnings.push_back("GPU " + std::to_string(gpu.index) + " is no slot: " + gpu.problem);
  }
}

void hand_out_cores(const std::vector<ClusterAgent*>& agents, const Machine& machine, int least,
                    std::vector<std::string>& warnings) {
  const auto cores = machine.cores ? *machine.cores : host::physical_cores();
  double cpus = 0;
  for (const std::vector<int>& core : cores) cpus += static_cast<double>(core.size());
  const double limit = machine.cpu_limit ? *machine.cpu_limit : host::cpu_limit();
  const bool limited = limit < cpus - 0.01;
  const int granted = std::max(1, std::min(static_cast<int>(cores.size()), static_cast<int>(limit + 0.01)));
  int total = 0;
  for (ClusterAgent* agent : agents) {
    if (agent->agent.slots == 0) agent->agent.slots = std::max(granted, least);
    total += agent->agent.slots;
  }
  LocalSlots divided = divide_cores(cores, total);
  if (!divided.warning.empty()) {
    warnings.push_back(divided.warning);
  } else if (limited && total > granted) {
    warnings.push_back("oversubscribed: " + std::to_string(total) + " slots, but the cgroup grants " + as_text(limit) +
                       " CPUs: slots share them and slow each other down");
  }
  auto next = divided.slots.begin();
  for (ClusterAgent* agent : agents) {
    for (int index = 0; index < agent->agent.slots; ++index, ++next) {
      ClusterSlot slot;
      slot.index = index;
      slot.cpus = std::move(next->cpus);
      slot.threads = static_cast<int>(slot.cpus.size());
      if (limited) slot.threads = std::clamp(static_cast<int>(limit / total), 1, slot.threads);
      agent->slots.push_back(std::move(slot));
    }
  }
}

}  // namespace

void add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine, const SlotDefaults& defaults,
                               std::vector<std::string>& warnings) {
  std::vector<ClusterAgent*> here;
  for (ClusterAgent& agent : agents) {
    if (agent.here) here.push_back(&agent);
  }
  const bool undecided =
      std::any_of(here.begin(), here.end(), [](auto* one) { return one->agent.slot_type == AgentSlotType::kAuto; });
  const bool wants_gpus =
      std::any_of(here.begin(), here.end(), [](auto* one) { return one->agent.slot_type == AgentSlotType::kCuda; });
  std::vector<host::GpuInfo> gpus;
  if (wants_gpus || (undecided && defaults.slot_type != AgentSlotType::kCpu)) {
    gpus = machine.gpus ? *machine.gpus : look_at_gpus(warnings);
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
