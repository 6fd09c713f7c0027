// Chooses the cores of each rank: of CPU slots that a file declares (divide_cores), and on a machine whose slots no
// file declares. Any thread.
//
// The rules for the latter (docs/cluster.md, "Slots, cores and threads"): if possible, the groups are of equal size, of
// cores of one kind, and each is within one NUMA node, or else within one socket.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/host/cpu.h"

namespace dtrain::scheduler {

// The unit that a task claims: a core, or a share of several cores if a cgroup grants less time than there are cores.
struct CoreUnit {
  int number = 0;  // unique on the machine
  int node = 0;    // NUMA node
  int package = 0;
  int kind = 0;  // as host::Core::kind
  bool operator==(const CoreUnit&) const = default;
};

// The numbers of each slot's units, ascending.
using CoreGroups = std::vector<std::vector<int>>;

CoreUnit unit_of(const host::Core& core);
// Returns the logical CPUs of each core.
std::vector<std::vector<int>> cpus_of(std::span<const host::Core> cores);
// Returns the logical CPUs of the cores with these numbers; both are ascending.
std::vector<int> cpus_of(std::span<const host::Core> cores, std::span<const int> numbers);

// Divides all units evenly among `slots`; the result depends on nothing else.
//  - If there are cores of several kinds, one kind is used: the one that gives each rank most. A core counts half as
//    much as one of the next faster kind. If no kind has a core for each slot, all kinds are used.
//  - No group crosses a NUMA node, unless the smallest group would then have over an eighth fewer units than an even
//    division gives, and fewer than `enough`. In that case the same is tried with sockets. If that fails too, the units
//    are divided in the order of sockets and nodes.
//  - Groups of one node differ by one unit at most; if groups cross nodes, this holds for all groups.
//  - With more slots than units, slots share units.
// ConfigError if slots < 1 or there is no unit.
CoreGroups divide_cores_evenly(std::span<const CoreUnit> units, int slots,
                               int enough = std::numeric_limits<int>::max());

// Takes `each` units for each of `slots` out of `free`. Empty: there are too few.
//  - All slots get cores of one kind if there are enough, of the fastest such kind; else at least each slot gets cores
//    of one kind, if possible.
//  - A slot gets units of one NUMA node: of those with enough free units, the one with the fewest. If no node has
//    enough, the same holds for sockets; else it takes units from the sockets with the most.
std::optional<CoreGroups> take_cores(std::span<const CoreUnit> free, int slots, int each);

// A declared CPU slot of this machine.
struct Slot {
  int index = 0;
  std::vector<int> cpus;  // logical CPUs, ascending; never empty
};

struct LocalSlots {
  std::vector<Slot> slots;
  std::string warning;  // says that slots share cores; empty: they do not
};

// Divides physical cores (each the list of its logical CPUs) evenly over `count` slots, neighbours together. With
// more slots than cores the logical CPUs are divided; with more slots than those, slots share them.
// ConfigError if count < 1 or there is no core.
LocalSlots divide_cores(std::span<const std::vector<int>> cores, int count);

// Return the number of these cores to which the logical CPUs belong, and the CPUs of the first `count` of those cores.
int count_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus);
std::vector<int> first_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus, int count);

}  // namespace dtrain::scheduler
