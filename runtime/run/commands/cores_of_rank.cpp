#include "commands/cores_of_rank.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/scheduler/core_groups.h"
#include "dtrain/scheduler/local_slots.h"

namespace dtrain::run {
namespace {

std::vector<std::vector<int>> cpus_of(const std::vector<host::Core>& cores) {
  std::vector<std::vector<int>> cpus;
  for (const host::Core& core : cores) cpus.push_back(core.cpus);
  return cpus;
}

// How many threads each of the host's slots may have; as many as you like where the cgroup sets no limit.
int threads_granted(const SlotOfRank& slot, const CoresOfHost& host) {
  double cpus = 0;
  for (const host::Core& core : host.cores) cpus += static_cast<double>(core.cpus.size());
  if (host.cpu_limit >= cpus - 0.01) return std::numeric_limits<int>::max();
  return std::max(1, static_cast<int>((host.cpu_limit + 0.01) / slot.slots));
}

void keep_cores(ShareOfRank& share, const SlotOfRank& slot, const CoresOfHost& host) {
  const std::vector<std::vector<int>> cpus = cpus_of(host.cores);
  const int cores = scheduler::count_cores(cpus, share.cpus);
  if (host.by_slurm && slot.cores > cores && std::cmp_less_equal(slot.cores, share.cpus.size())) return;
  if (slot.cores > cores) {
    throw ConfigError("host " + host.name + ": resources.cores_per_slot is " + std::to_string(slot.cores) +
                          ", but a slot has " + std::to_string(cores) +
                          (cores == 1 ? " core here: " : " cores here: ") + std::to_string(slot.slots) +
                          " slots divide " + std::to_string(cpus.size()) + " cores",
                      "use at most " + std::to_string(cores) + ", or auto for all cores of the slot");
  }
  share.cpus = scheduler::first_cores(cpus, share.cpus, slot.cores);
  share.threads = std::min(share.threads, slot.cores);
}

ShareOfRank all_cores_of(const SlotOfRank& slot, const CoresOfHost& host) {
  const std::vector<std::vector<int>> cpus = cpus_of(host.cores);
  if (!slot.cpus.empty()) return {.cpus = slot.cpus, .threads = scheduler::count_cores(cpus, slot.cpus)};
  const auto index = static_cast<std::size_t>(slot.index);
  if (!slot.of_cores || std::cmp_greater(slot.slots, host.cores.size())) {
    const auto of_slot = scheduler::divide_cores(cpus, slot.slots).slots.at(index).cpus;
    return {.cpus = of_slot, .threads = scheduler::count_cores(cpus, of_slot)};
  }
  std::vector<scheduler::CoreUnit> units;
  for (const host::Core& core : host.cores) units.push_back(scheduler::unit_of(core));
  const auto groups = scheduler::divide_cores_evenly(units, slot.slots, threads_granted(slot, host));
  ShareOfRank share{.threads = static_cast<int>(groups.front().size())};  // as many as the rank with the fewest
  for (const std::vector<int>& group : groups) share.threads = std::min(share.threads, static_cast<int>(group.size()));
  share.cpus = scheduler::cpus_of(host.cores, groups[index]);
  return share;
}

}  // namespace

ShareOfRank cores_of_rank(const SlotOfRank& slot, const CoresOfHost& host) {
  ShareOfRank share = all_cores_of(slot, host);
  keep_to_slot(share, slot, host);
  return share;
}

void keep_to_slot(ShareOfRank& share, const SlotOfRank& slot, const CoresOfHost& host) {
  if (share.cpus.empty()) return;
  if (slot.cores > 0) keep_cores(share, slot, host);
  share.threads = slot.threads > 0 ? slot.threads : std::max(1, std::min(share.threads, threads_granted(slot, host)));
}

}  // namespace dtrain::run
