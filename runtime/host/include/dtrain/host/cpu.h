// Facts about this machine's processors. Any thread may call.
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

}  // namespace dtrain::host
