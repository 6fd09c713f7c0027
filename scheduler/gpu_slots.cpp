#include "dtrain/scheduler/gpu_slots.h"

#include <algorithm>
#include <set>

#include "dtrain/base/text.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/visible_gpus.h"
#include "dtrain/scheduler/local_slots.h"
#include "machine_slots.h"

namespace dtrain::scheduler {
namespace {

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
  ClusterSlot slot{.index = index, .gpu_uuid = gpu.id, .gpu_name = "MIG instance"};
  if (gpu.info) {
    slot.gpu = gpu.info->index;
    slot.gpu_uuid = gpu.info->uuid;
    slot.gpu_name = gpu.info->name;
    slot.gpu_memory = gpu.info->total_memory;
    slot.problem = gpu.info->problem;
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
