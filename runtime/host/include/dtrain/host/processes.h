// The resources that a process uses, its identity, and whether the kernel has killed one for lack of memory. From
// /proc/<pid> and the control groups. Any thread may call. `root`: the folder that holds proc/ and sys/.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/cgroup.h"

namespace dtrain::host {

struct ProcessUsage {
  std::uint64_t resident_bytes = 0;  // in memory now; pages shared with others count in full
  std::chrono::nanoseconds cpu{0};   // user and system time of all its threads since it started
};

// Reads the usage of a process. Empty: there is no such process (any more).
std::optional<ProcessUsage> read_process(pid_t pid, const std::filesystem::path& root = "/");

// Returns the running processes that its first thread has started, such as the worker processes of a DataLoader.
std::vector<pid_t> child_processes(pid_t pid, const std::filesystem::path& root = "/");

struct ProcessMemory {
  std::uint64_t resident_bytes = 0;   // as in ProcessUsage
  std::uint64_t peak_bytes = 0;       // the largest resident_bytes so far
  std::uint64_t anonymous_bytes = 0;  // the part of resident_bytes that belongs to no file and is not shared
};

// Reads the memory of a process. Empty: there is no such process.
std::optional<ProcessMemory> read_process_memory(pid_t pid, const std::filesystem::path& root = "/");

// Returns the time since its start that a thread could have run but waited for a core. Empty: the kernel does not
// report it.
std::optional<std::chrono::nanoseconds> read_core_wait(pid_t thread, const std::filesystem::path& root = "/");

// Returns the start time of a process, in clock ticks since the machine's boot, in any time namespace. The pid and the
// start time together identify a process, because a later process may get the same pid. 0: there is no such process (a
// zombie does not count).
std::uint64_t start_ticks(pid_t pid);

// True if the process is stopped (SIGSTOP, or a debugger). Then only SIGKILL and SIGCONT have an effect on it.
bool is_stopped(pid_t pid);
struct ProcessState {
  char state = '?';     // as in /proc/PID/status; '?': there is no such process
  bool traced = false;  // by a debugger
  pid_t parent = 0;
  bool is_stopped_by_signal() const { return state == 'T' && !traced; }
};
ProcessState read_process_state(pid_t pid);

// The number of processes that the kernel has killed because the machine or a control group had no memory left.
struct MemoryKills {
  std::optional<std::uint64_t> machine;  // on this machine, since boot
  std::optional<std::uint64_t> group;    // in this process's control group
  std::vector<MemoryLimit> limits;       // of that group and its ancestors
};
MemoryKills read_memory_kills(const std::filesystem::path& root = "/");

// Returns the text about a process of this control group that SIGKILL has ended between two readings: the sender of the
// signal and, for lack of memory, the owner of the full memory and the remedy.
std::string who_killed(const MemoryKills& before, const MemoryKills& after);

// The environment variable by which the ledger recognises the processes of a launcher (dtrain/scheduler/rank_mark.h). A
// rank removes it when it starts, because its own children are no ranks.
inline constexpr const char* kRankMark = "DTRAIN_LAUNCHED_BY";

}  // namespace dtrain::host
