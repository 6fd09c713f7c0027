// Which cores each rank gets on a machine whose slots no file declares. Pure functions; any thread.
//
// The rules (docs/cluster.md, "Slots, cores and threads"): the groups of cores are alike, of cores of one kind, and
// within one NUMA node, else within one socket, wherever that is possible.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/host/topology.h"

namespace dtrain::scheduler {

// What a task claims: a core; or a share of several cores, where a cgroup grants less time than there are cores.
struct CoreUnit {
  int number = 0;  // unlike those of the machine's other units
  int node = 0;    // NUMA node
  int package = 0;
  int kind = 0;  // as host::Core::kind
  bool operator==(const CoreUnit&) const = default;
};

// Of each slot the numbers of its units, ascending.
using CoreGroups = std::vector<std::vector<int>>;

CoreUnit unit_of(const host::Core& core);
// The logical CPUs of those cores whose numbers are listed (ascending), ascending.
std::vector<int> cpus_of(std::span<const host::Core> cores, std::span<const int> numbers);

// All units, divided evenly among `slots`; it depends on nothing else.
//  - Of cores of several kinds one kind is used: the one that gives a rank most, where a core of a slower kind counts
//    half as much as one of the next faster kind. If no kind has a core for each slot, all are used.
//  - No group crosses a NUMA node if nodes have enough groups so that the smallest has at most an eighth fewer units
//    than an even division gives, or `enough`; else the same with sockets. Otherwise the units are divided in the order
//    of sockets and nodes.
//  - Groups of one node, or where they cross nodes all of them, differ by one unit at most.
//  - With more slots than units, slots share units.
// ConfigError if slots < 1 or there is no unit.
CoreGroups divide_cores_evenly(std::span<const CoreUnit> units, int slots,
                               int enough = std::numeric_limits<int>::max());

// `each` units for each of `slots` out of `free`. Nothing: there are too few.
//  - All slots get cores of one kind if there are enough, the faster kind first; else each slot does, if possible.
//  - A slot gets units of the NUMA node with the fewest free ones that are enough, else of such a socket, else of those
//    with the most.
std::optional<CoreGroups> take_cores(std::span<const CoreUnit> free, int slots, int each);

}  // namespace dtrain::scheduler
