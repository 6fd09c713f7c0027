// The control groups (cgroup v1 and v2) of a process: the processor time and the memory that they allow, and the
// kernel's actions at these limits. The limits of a group hold for all its processes together, and those of its
// ancestors hold as well. Any thread may call. `root`: the folder that holds proc/ and sys/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace dtrain {

struct Cgroup {
  std::string name;  // as /proc/PID/cgroup has it: "/docker/1f"; "/": the root, or in a container its own group
  std::filesystem::path folder;
  bool v2 = false;
};

// The groups of a process, from its own up to the topmost one that is visible to this process.
struct Cgroups {
  std::vector<Cgroup> cpu;     // those that may limit processor time
  std::vector<Cgroup> memory;  // … and memory
  std::vector<Cgroup> pids;    // … and the number of processes and threads
  std::vector<Cgroup> cpuset;  // … and the processors
};

// `pid` 0: this process.
Cgroups cgroups_of(pid_t pid, const std::filesystem::path& root = "/");

struct CpuQuota {
  std::string group;
  double cpus = 0;  // CPUs' worth of time
  std::chrono::nanoseconds period{};
  std::uint64_t periods = 0;                  // periods in which the group ran, since it was made
  std::uint64_t throttled = 0;                // periods in which its time was used up, and it was stopped
  std::chrono::nanoseconds throttled_time{};  // time for which it was stopped, summed over CPUs
};

// Returns the quotas of the groups that have one, in their order.
std::vector<CpuQuota> cpu_quotas(const Cgroups& groups);

// Returns the logical CPUs on which the groups let their processes run, ascending. Empty: the kernel does not report
// it.
std::vector<int> cpus_of(const Cgroups& groups);

struct MemoryLimit {
  std::string group;
  std::string file;           // "memory.max"
  std::uint64_t bytes = 0;    // the limit
  std::uint64_t used = 0;     // without caches of files, which the kernel drops before it kills
  std::uint64_t reached = 0;  // times that the group's use has reached the limit
  std::uint64_t free() const { return bytes > used ? bytes - used : 0; }
};

// Returns the limits of the groups that have one, in their order.
std::vector<MemoryLimit> memory_limits(const Cgroups& groups);
// Returns the limit that leaves the least memory; null: there is none.
const MemoryLimit* tightest(const std::vector<MemoryLimit>& limits);

struct ProcessesLimit {
  std::string group;
  std::string file;        // "/sys/fs/cgroup/user/pids.max"
  std::uint64_t most = 0;  // processes and threads
};

// Returns the innermost group that has as many processes and threads as it may have. Empty: there is none.
std::optional<ProcessesLimit> full_of_processes(const Cgroups& groups);

// Returns the number of processes of the innermost group that the kernel has killed for lack of memory in the group or
// the machine. Empty: the kernel does not report it.
std::optional<std::uint64_t> memory_kills(const Cgroups& groups);

// Returns "the cgroup /docker/1f" or "the cgroup of this container", for texts.
std::string describe_cgroup(const std::string& name);

// Returns the bytes that this host has left for new data: those that the kernel reports as available, at most those
// that the limits of the control groups leave. Empty: the kernel does not report them.
std::optional<std::size_t> available_memory();

}  // namespace dtrain
