// The processor cores of this machine, or of a machine that was recorded. Any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace dtrain::host {

// A physical core, as far as this process may use it.
struct Core {
  int number = 0;         // from 0, in the order of all cores' first CPUs: the same for all processes of the machine
  std::vector<int> cpus;  // the logical CPUs that this process may use, ascending; never empty
  int node = 0;           // its NUMA node, as the kernel numbers nodes
  int package = 0;        // its socket
  int kind = 0;           // its class of speed; 0 is the slowest (efficiency cores), 1 for performance cores
  bool operator==(const Core&) const = default;
};

// The source of the cores. The default is this machine and the affinity mask of the calling thread.
struct TopologySource {
  std::filesystem::path xml;                 // a file that hwloc's `lstopo FILE.xml` has written; empty: this machine
  std::optional<std::vector<int>> affinity;  // the CPUs that count; empty: the mask, or all that were recorded
};

// Returns the cores, ordered by their first usable CPU. If hwloc does not report which CPUs share a core, each counts
// as a core. Cores are of different kinds if the processor reports it (CoreType, capacity), or if their highest clock
// rates differ by more than a fifth. ConfigError: the XML file cannot be read. SystemError: the kernel does not report
// the affinity mask.
std::vector<Core> usable_cores(const TopologySource& source = {});

// Returns the number of cores that this process may use as one of `local_size` ranks of this host: the cores to which
// it is bound, otherwise its share of all cores. At most its share of the time that the cgroup grants, at least 1.
int cores_for_rank(int local_size);

}  // namespace dtrain::host
