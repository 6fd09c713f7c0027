// Facts about this machine's processors.
#pragma once

#include <string>
#include <vector>

namespace dtrain::host {

// The logical CPUs this process may run on (affinity mask), ascending, one per physical core first.
std::vector<int> allowed_cpus();

// Physical cores among them (hwloc), each the list of its logical CPUs.
std::vector<std::vector<int>> physical_cores();

// CPUs' worth of time the cgroup grants (v1 and v2), or the number of allowed CPUs where it is not limited.
double cpu_limit();

}  // namespace dtrain::host
