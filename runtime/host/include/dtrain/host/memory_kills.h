// Finds out whether the kernel has killed a process because the machine or a control group had no memory left. Any
// thread may call. `root`: the folder that holds proc/ and sys/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/cgroup.h"

namespace dtrain::host {

// The number of processes that the kernel has killed for lack of memory so far.
struct MemoryKills {
  std::optional<std::uint64_t> machine;  // on this machine, since boot
  std::optional<std::uint64_t> group;    // in this process's control group
  std::vector<MemoryLimit> limits;       // of that group and its ancestors
};
MemoryKills read_memory_kills(const std::filesystem::path& root = "/");

// Returns the text about a process of this control group that SIGKILL has ended between two readings: the sender of the
// signal and, for lack of memory, the owner of the full memory and the remedy.
std::string who_killed(const MemoryKills& before, const MemoryKills& after);

}  // namespace dtrain::host
