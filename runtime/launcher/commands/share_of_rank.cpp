#include "commands/share_of_rank.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "commands/kept_rank.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/launcher/internal_commands.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/scheduler/core_groups.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

namespace {

[[noreturn]] void wrong(const std::string& assignment, int rank) {
  throw ConfigError("environment: DTRAIN_GPUS=" + assignment + " has no GPU for rank " + std::to_string(rank),
                    "only `dtrain launch` sets DTRAIN_GPUS; unset it");
}

struct HostAndGpu {
  std::string host;
  std::string gpu;
};

HostAndGpu parts_of(const std::string& entry, const std::string& assignment, int rank) {
  const auto colon = entry.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == entry.size()) wrong(assignment, rank);
  return {entry.substr(0, colon), entry.substr(colon + 1)};
}

// Returns the GPU's name in CUDA_VISIBLE_DEVICES.
std::string id_of(const scheduler::ClusterSlot& slot) {
  return slot.gpu_uuid.empty() ? std::to_string(slot.gpu) : slot.gpu_uuid;
}

// Null: there is no such GPU.
const scheduler::ClusterSlot* find_gpu(const std::vector<scheduler::ClusterSlot>& slots, const std::string& name) {
  const auto place = to_number<int>(name);
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const scheduler::ClusterSlot& slot) {
    return slot.index >= 0 && (place ? slot.index == *place : slot.gpu_uuid == name);
  });
  return found == slots.end() ? nullptr : &*found;
}

std::string texts_of(const std::vector<scheduler::ClusterSlot>& slots) {
  std::vector<std::string> texts;
  for (const scheduler::ClusterSlot& slot : slots) {
    texts.push_back(id_of(slot) + (slot.problem.empty() ? "" : " (" + slot.problem + ")"));
  }
  return texts.empty() ? "none" : join(texts, ", ");
}

}  // namespace

ShareOfRank gpus_of_rank(const std::vector<scheduler::ClusterSlot>& slots, const std::string& assignment, int rank,
                         const std::string& host) {
  const std::vector<std::string> entries = split(assignment, ',');
  if (static_cast<std::size_t>(rank) >= entries.size()) wrong(assignment, rank);
  const HostAndGpu mine = parts_of(entries[static_cast<std::size_t>(rank)], assignment, rank);
  std::vector<std::string> wanted;
  for (const std::string& entry : entries) {
    const HostAndGpu its = parts_of(entry, assignment, rank);
    if (its.host == mine.host) wanted.push_back(its.gpu);
  }
  const auto usable = std::count_if(slots.begin(), slots.end(), [](const auto& slot) { return slot.index >= 0; });
  if (usable == 1 && wanted.size() > 1) {
    const scheduler::ClusterSlot& only = slots.front();
    return {.cpus = {},
            .threads = 0,
            .variables = {{"CUDA_VISIBLE_DEVICES", id_of(only)}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}};
  }
  ShareOfRank share;
  std::vector<std::string> ids;
  for (const std::string& gpu : wanted) {
    const scheduler::ClusterSlot* const slot = find_gpu(slots, gpu);
    if (!slot) {
      throw ConfigError(
          "host " + host + ": the plan has " + std::to_string(wanted.size()) + " ranks on GPUs here, but GPU slot " +
              gpu + " does not exist; its GPUs: " + texts_of(slots),
          "`dtrain slot list` on that host shows its GPUs; the cluster file must not declare more of them");
    }
    ids.push_back(id_of(*slot));
    if (gpu != mine.gpu) continue;
    share.cpus = slot->cpus;
    share.threads = slot->threads;
  }
  share.variables = {{"CUDA_VISIBLE_DEVICES", join(ids, ",")}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}};
  return share;
}

ShareOfRank gpus_of_rank(const rank::Variables& variables, int rank, const std::string& host) {
  const auto assignment = variables.find("DTRAIN_GPUS");
  if (assignment == variables.end()) wrong("", rank);
  std::vector<std::string> warnings;
  const auto slots = scheduler::find_gpu_slots(machine_with_gpus(), variables, warnings);
  if (slots.empty()) {
    throw ConfigError(
        "host " + host + ": the plan has ranks on GPUs here, but no GPU is visible" +
            (warnings.empty() ? ": NVIDIA's driver (NVML) reports none, or CUDA_VISIBLE_DEVICES hides them"
                              : ": " + join(warnings, "; ")),
        "`dtrain doctor` on that host checks GPUs and driver");
  }
  return gpus_of_rank(slots, assignment->second, rank, host);
}

namespace {

std::optional<int> threads_granted(const rank::SlotOfRank& slot, const CoresOfHost& host) {
  std::size_t cpus = 0;
  for (const host::Core& core : host.cores) cpus += core.cpus.size();
  return host::threads_granted(host.cpu_limit, cpus, slot.slots);
}

void keep_cores(ShareOfRank& share, const rank::SlotOfRank& slot, const CoresOfHost& host) {
  const std::vector<std::vector<int>> cpus = scheduler::cpus_of(host.cores);
  const int cores = scheduler::count_cores(cpus, share.cpus);
  if (host.by_slurm && slot.cores > cores && std::cmp_less_equal(slot.cores, share.cpus.size())) return;
  if (slot.cores > cores) {
    throw ConfigError("host " + host.name + ": resources.cores_per_slot is " + std::to_string(slot.cores) +
                          ", but a slot has " + count_of(cores, "core") + " here: " + std::to_string(slot.slots) +
                          " slots divide " + std::to_string(cpus.size()) + " cores",
                      "use at most " + std::to_string(cores) + ", or auto for all cores of the slot");
  }
  share.cpus = scheduler::first_cores(cpus, share.cpus, slot.cores);
  share.threads = std::min(share.threads, slot.cores);
}

ShareOfRank all_cores_of(const rank::SlotOfRank& slot, const CoresOfHost& host) {
  const std::vector<std::vector<int>> cpus = scheduler::cpus_of(host.cores);
  if (!slot.cpus.empty()) return {.cpus = slot.cpus, .threads = scheduler::count_cores(cpus, slot.cpus)};
  const auto index = static_cast<std::size_t>(slot.index);
  if (!slot.of_cores || std::cmp_greater(slot.slots, host.cores.size())) {
    const auto of_slot = scheduler::divide_cores(cpus, slot.slots).slots.at(index).cpus;
    return {.cpus = of_slot, .threads = scheduler::count_cores(cpus, of_slot)};
  }
  std::vector<scheduler::CoreUnit> units;
  for (const host::Core& core : host.cores) units.push_back(scheduler::unit_of(core));
  const int granted = threads_granted(slot, host).value_or(std::numeric_limits<int>::max());
  const auto groups = scheduler::divide_cores_evenly(units, slot.slots, granted);
  std::vector<host::RankThreads> threads;
  for (const std::vector<int>& group : groups) threads.push_back({.threads = static_cast<int>(group.size())});
  return {.cpus = scheduler::cpus_of(host.cores, groups[index]), .threads = host::threads_of_all(threads).threads};
}

void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) throw SystemError("cannot bind a rank to its cores", errno);
}

}  // namespace

ShareOfRank cores_of_rank(const rank::SlotOfRank& slot, const CoresOfHost& host) {
  ShareOfRank share = all_cores_of(slot, host);
  keep_to_slot(share, slot, host);
  return share;
}

void keep_to_slot(ShareOfRank& share, const rank::SlotOfRank& slot, const CoresOfHost& host) {
  if (share.cpus.empty()) return;
  if (slot.cores > 0) keep_cores(share, slot, host);
  share.threads = slot.threads > 0
                      ? slot.threads
                      : host::threads_on(share.threads, share.cpus.size(), threads_granted(slot, host)).threads;
}

void start_rank(const std::vector<std::string>& command) {
  const std::string host = host::host_identity().name;
  const rank::Variables variables = rank::process_variables();
  const rank::RankEnvironment environment = rank::read_rank_environment(variables);
  if (!is_program(command.front())) {
    throw ConfigError("host " + host + ": there is no program " + command.front(),
                      "every host needs the program under the same path");
  }
  std::vector<std::pair<std::string, std::string>> set;
  const auto slot = rank::slot_of_rank(variables, environment.world.rank);
  std::optional<ShareOfRank> share;
  CoresOfHost here{.name = host, .by_slurm = environment.started_by == "Slurm"};
  if (slot) {
    here.cores = host::usable_cores();
    here.cpu_limit = host::cpu_limit();
  }
  if (environment.is_placed_on_gpus()) {
    share = gpus_of_rank(variables, environment.world.rank, host);
    set.insert(set.end(), share->variables.begin(), share->variables.end());
    if (slot) keep_to_slot(*share, *slot, here);
  } else if (slot) {
    share = cores_of_rank(*slot, here);
  }
  const bool binds = slot && share && !share->cpus.empty();
  if (binds) bind_to(share->cpus);
  for (const auto& variable : host::thread_variables(variables, {}, binds ? share->threads : 0)) {
    set.push_back(variable);
  }
  // NCCL takes only names of interfaces, and these may differ between hosts. "=" means exactly this name.
  if (!environment.network_interface.empty() && !variables.contains("NCCL_SOCKET_IFNAME")) {
    set.emplace_back("NCCL_SOCKET_IFNAME",
                     "=" + host::interface_of(environment.network_interface, "host " + host + ": "));
  }
  const std::string libraries = rank::find_libraries(command.front(), variables);
  if (!libraries.empty()) set.emplace_back("LD_LIBRARY_PATH", libraries);
  rank::set_process_variables(set);
  // srun lets the other ranks run after one has ended.
  if (environment.started_by == "Open MPI") keep_rank(command, environment.world.rank);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments.front(), arguments.data());
  throw SystemError("host " + host + ": cannot start " + command.front(), errno);
}

}  // namespace dtrain::launcher
