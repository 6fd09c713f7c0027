// The processors of this machine: facts about them, and their cores. Any thread may call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::host {

// Returns the logical CPUs that this process may run on (affinity mask): first the first CPU of each physical core,
// ascending, then the second ones, and so on. SystemError if the kernel does not report them.
std::vector<int> allowed_cpus();

// Returns the physical cores of these CPUs (hwloc), each as the list of its logical CPUs.
std::vector<std::vector<int>> physical_cores();

// Returns the logical CPUs nearest to a PCI device (its NUMA node's), ascending, usable by this process or not.
// `address` as NVML writes it: "00000000:3B:00.0". Empty: the kernel does not report it. `root`: folder of sys/.
std::vector<int> cpus_near_pci_device(const std::string& address, const std::filesystem::path& root = "/");

// Returns the processor time that the cgroup grants, in CPUs (v1 and v2; the lowest limit of its ancestors counts), at
// most the number of allowed CPUs. `root`: the folder that holds proc/ and sys/.
double cpu_limit(const std::filesystem::path& root = "/");

// The vector features of the processor, as the kernel reports them (x86 and Arm).
struct CpuInstructions {
  int vector_bits = 0;  // bits of its widest floating-point vectors; at least 128
  bool bf16 = false;    // has instructions that multiply bfloat16
};
std::optional<CpuInstructions> cpu_instructions(const std::filesystem::path& root = "/");

// The processor's name ("AMD EPYC 9655 96-Core Processor") as the kernel reports it; empty: it reports none. `revision`
// distinguishes processors of the same name: family, model and stepping ("26.2.1").
struct Processor {
  std::string name;
  std::string revision;
};
Processor processor(const std::filesystem::path& root = "/");

// True on an AMD processor with AVX2 and FMA that the operating system lets programs use (cpuid).
bool is_amd_with_avx2();

// Returns the bytes of the largest cache that cores share; 0: not known. `root`: folder of sys/, for processors that
// only the kernel knows.
std::size_t last_level_cache(const std::filesystem::path& root = "/");

// A physical core of this machine, or of a machine that was recorded, as far as this process may use it.
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

// The processors that this process may use, and beside them those of its parent and of its cgroup.
struct ProcessCores {
  int cores = 0;
  int cpus = 0;              // logical CPUs of the affinity mask
  int cpus_of_parent = 0;    // those of its parent's mask; 0: the parent is gone, or of another user
  int cpus_of_group = 0;     // those that its cgroup, or without one its host, has for all its processes together …
  double time_of_group = 0;  // … and the CPUs' worth of time that it has for them
};
// `root` as for cpu_limit().
ProcessCores process_cores(const std::filesystem::path& root = "/");

}  // namespace dtrain::host
