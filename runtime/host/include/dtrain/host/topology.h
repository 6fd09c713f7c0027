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
  int kind = 0;           // the class of its speed, 0 the slowest: efficiency cores 0, performance cores 1
  bool operator==(const Core&) const = default;
};

// What to read. By default this machine and the affinity mask of the calling thread.
struct TopologySource {
  std::filesystem::path xml;                 // as `lstopo FILE.xml` of hwloc writes it; empty: this machine
  std::optional<std::vector<int>> affinity;  // the CPUs that count; empty: the mask, or all that were recorded
};

// The cores by their first usable CPU. If hwloc does not report how CPUs are paired, each counts as a core. Cores are
// of different kinds where the processor says so (CoreType, capacity), or where the highest clock rates differ by more
// than a fifth. ConfigError: the XML file cannot be read. SystemError: the kernel does not report the affinity mask.
std::vector<Core> usable_cores(const TopologySource& source = {});

// How many cores this process has for itself, as one of so many ranks on this host: all that it is bound to, if whoever
// started it has bound it to fewer than its own; else its share of them. At least 1.
int cores_for_rank(int local_size);

}  // namespace dtrain::host
