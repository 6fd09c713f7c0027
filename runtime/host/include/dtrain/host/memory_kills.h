// Why the kernel has killed a process: it does so where the machine or a control group has no memory left. Any thread
// may call. `root`: where proc/ and sys/ are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/cgroup.h"

namespace dtrain::host {

// What the kernel has killed for lack of memory so far.
struct MemoryKills {
  std::optional<std::uint64_t> machine;  // on this machine, since boot
  std::optional<std::uint64_t> group;    // in this process's control group
  std::vector<MemoryLimit> limits;       // of that group and its ancestors
};
MemoryKills read_memory_kills(const std::filesystem::path& root = "/");

// What is to be said of a process of this control group that SIGKILL has ended between two readings: who sent the
// signal and, where it was for lack of memory, whose memory was full and what to do.
std::string who_killed(const MemoryKills& before, const MemoryKills& after);

}  // namespace dtrain::host
