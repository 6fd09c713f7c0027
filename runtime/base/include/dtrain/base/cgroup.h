// The control groups (cgroup v1 and v2) of a process: the processor time and the memory that they allow, and what the
// kernel has done because of that. The limits of a group hold for all its processes together, and those of its
// ancestors hold as well. Any thread may call. `root`: where proc/ and sys/ are.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dtrain {

struct Cgroup {
  std::string name;  // as /proc/PID/cgroup has it: "/docker/1f"; "/": the root, or in a container its own group
  std::filesystem::path folder;
  bool v2 = false;
};

// Of a process, from its own group up to the topmost one that is visible here.
struct Cgroups {
  std::vector<Cgroup> cpu;     // those that may limit processor time
  std::vector<Cgroup> memory;  // … and memory
};

// `pid` 0: this process.
Cgroups cgroups_of(pid_t pid, const std::filesystem::path& root = "/");

struct CpuQuota {
  std::string group;
  double cpus = 0;  // CPUs' worth of time
  std::chrono::nanoseconds period{};
  std::uint64_t periods = 0;                  // in which the group ran, since it was made
  std::uint64_t throttled = 0;                // … in which its time was used up, and it was stopped
  std::chrono::nanoseconds throttled_time{};  // that it was stopped for, summed over CPUs
};

// Of the groups that have one, in their order.
std::vector<CpuQuota> cpu_quotas(const Cgroups& groups);

struct MemoryLimit {
  std::string group;
  std::string file;           // "memory.max"
  std::uint64_t bytes = 0;    // the limit
  std::uint64_t used = 0;     // without caches of files, which the kernel drops before it kills
  std::uint64_t reached = 0;  // how often the group's use has reached the limit
  std::uint64_t free() const { return bytes > used ? bytes - used : 0; }
};

// Of the groups that have one, in their order.
std::vector<MemoryLimit> memory_limits(const Cgroups& groups);
// The one of them that leaves the least; null: there is none.
const MemoryLimit* tightest(const std::vector<MemoryLimit>& limits);

// How many processes of the innermost group the kernel has killed for lack of memory, its own or the machine's. Empty:
// the kernel does not say.
std::optional<std::uint64_t> memory_kills(const Cgroups& groups);

// For a text: "the cgroup /docker/1f", "the cgroup of this container".
std::string describe_cgroup(const std::string& name);

}  // namespace dtrain
