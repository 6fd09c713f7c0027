// Memory of this machine, from /proc/meminfo. Any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace dtrain::host {

// Bytes.
struct MemoryReading {
  std::uint64_t total = 0;
  std::uint64_t available = 0;  // free memory, and caches that the kernel would drop for programs
};

// Empty: the kernel does not report it.
std::optional<MemoryReading> read_memory(const std::filesystem::path& root = "/");

}  // namespace dtrain::host
