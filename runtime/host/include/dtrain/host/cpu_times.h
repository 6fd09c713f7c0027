// The load of the CPUs, from /proc/stat. The counters start at boot, so a utilization needs two readings. Any thread
// may call. `root` is the folder that holds proc/ (tests give their own).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace dtrain::host {

// Clock ticks since boot.
struct CpuTimes {
  std::uint64_t busy = 0;     // user, nice, system, interrupts, stolen
  std::uint64_t idle = 0;     // nothing to do
  std::uint64_t io_wait = 0;  // idle while waiting for a disk
  std::uint64_t total() const { return busy + idle + io_wait; }
};

struct CpuReading {
  CpuTimes all;                 // the whole machine, not only this process's CPUs
  std::vector<CpuTimes> cores;  // by logical CPU number; one that is offline stays zero
};

std::optional<CpuReading> read_cpu_times(const std::filesystem::path& root = "/");

// Shares of the time between two readings, 0 to 1. A counter that has decreased (io_wait does so with some kernels)
// counts as 0.
double busy_share(const CpuTimes& before, const CpuTimes& after);
double io_wait_share(const CpuTimes& before, const CpuTimes& after);

}  // namespace dtrain::host
