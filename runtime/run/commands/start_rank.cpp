#include "dtrain/run/start_rank.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include "commands/gpus_of_rank.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/host/identity.h"
#include "dtrain/host/reachable_address.h"
#include "dtrain/host/topology.h"
#include "dtrain/scheduler/core_groups.h"
#include "dtrain/scheduler/local_slots.h"
#include "environment.h"
#include "libtorch.h"

namespace dtrain::run {
namespace {

void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) throw SystemError("cannot bind a rank to its cores", errno);
}

// The slot's cores on this host. Slots of a run that are made of cores are divided as on the launching host. If a
// cluster file declares more slots than this host has cores, ranks share cores, as on the launching host.
ShareOfRank all_cores_of(const SlotOfRank& slot, const std::vector<host::Core>& cores,
                         const std::vector<std::vector<int>>& cpus) {
  if (!slot.cpus.empty()) return {.cpus = slot.cpus, .threads = scheduler::count_cores(cpus, slot.cpus)};
  const auto index = static_cast<std::size_t>(slot.index);
  if (!slot.of_cores || std::cmp_greater(slot.slots, cores.size())) {
    const auto of_slot = scheduler::divide_cores(cpus, slot.slots).slots.at(index).cpus;
    return {.cpus = of_slot, .threads = scheduler::count_cores(cpus, of_slot)};
  }
  std::vector<scheduler::CoreUnit> units;
  for (const host::Core& core : cores) units.push_back(scheduler::unit_of(core));
  const scheduler::CoreGroups groups = scheduler::divide_cores_evenly(units, slot.slots);
  ShareOfRank share{.threads = static_cast<int>(groups.front().size())};  // as many as the rank with the fewest
  for (const std::vector<int>& group : groups) share.threads = std::min(share.threads, static_cast<int>(group.size()));
  share.cpus = scheduler::cpus_of(cores, groups[index]);
  return share;
}

// Leaves so many of the cores. ConfigError: there are fewer. Slurm was asked for CPUs, as it counts them: where these
// are siblings of one core, the rank has fewer cores, and keeps all of them.
void keep_cores(ShareOfRank& share, const SlotOfRank& slot, const std::vector<std::vector<int>>& cpus,
                const std::string& host, bool by_slurm) {
  if (slot.cores == 0 || share.cpus.empty()) return;
  const int cores = scheduler::count_cores(cpus, share.cpus);
  if (by_slurm && slot.cores > cores && std::cmp_less_equal(slot.cores, share.cpus.size())) return;
  if (slot.cores > cores) {
    throw ConfigError("host " + host + ": resources.cores_per_slot is " + std::to_string(slot.cores) +
                          ", but a slot has " + std::to_string(cores) +
                          (cores == 1 ? " core here: " : " cores here: ") + std::to_string(slot.slots) +
                          " slots divide " + std::to_string(cpus.size()) + " cores",
                      "use at most " + std::to_string(cores) + ", or auto for all cores of the slot");
  }
  share.cpus = scheduler::first_cores(cpus, share.cpus, slot.cores);
  share.threads = std::min(share.threads, slot.cores);
}

}  // namespace

void start_rank(const std::vector<std::string>& command) {
  const std::string host = host::host_identity().name;
  const Variables variables = process_variables();
  const RankEnvironment environment = read_rank_environment(variables);
  if (!is_program(command.front())) {
    throw ConfigError("host " + host + ": there is no program " + command.front(),
                      "every host needs the program under the same path");
  }
  std::vector<std::pair<std::string, std::string>> set;
  if (!variables.contains("OMP_WAIT_POLICY")) set.emplace_back("OMP_WAIT_POLICY", "passive");
  const auto slot = slot_of_rank(variables, environment.world.rank);
  std::optional<ShareOfRank> share;
  const std::vector<host::Core> cores = slot ? host::usable_cores() : std::vector<host::Core>();
  std::vector<std::vector<int>> cpus;
  for (const host::Core& core : cores) cpus.push_back(core.cpus);
  if (environment.is_placed_on_gpus()) {
    share = gpus_of_rank(variables, environment.world.rank, host);
    set.insert(set.end(), share->variables.begin(), share->variables.end());
  } else if (slot) {
    share = all_cores_of(*slot, cores, cpus);
  }
  if (slot && share && !share->cpus.empty()) {
    keep_cores(*share, *slot, cpus, host, environment.started_by == "Slurm");
    if (slot->threads > 0) share->threads = slot->threads;
    bind_to(share->cpus);
    if (!variables.contains("OMP_NUM_THREADS")) {
      set.emplace_back("OMP_NUM_THREADS", std::to_string(std::max(1, share->threads)));
    }
  }
  // NCCL takes only names of interfaces, and these may differ between hosts. "=" means exactly this name.
  if (!environment.network_interface.empty() && !variables.contains("NCCL_SOCKET_IFNAME")) {
    set.emplace_back("NCCL_SOCKET_IFNAME",
                     "=" + host::interface_of(environment.network_interface, "host " + host + ": "));
  }
  const std::string libraries = find_libraries(command.front(), variables);
  if (!libraries.empty()) set.emplace_back("LD_LIBRARY_PATH", libraries);
  set_process_variables(set);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments.front(), arguments.data());
  throw SystemError("host " + host + ": cannot start " + command.front(), errno);
}

}  // namespace dtrain::run
