// The readings of the whole machine that the monitor takes twice a second: CPU times (/proc/stat), memory
// (/proc/meminfo) and disks (/proc/diskstats). Their counters start at boot, so a utilization needs two readings. Any
// thread may call. `root` is the folder that holds proc/ and sys/ (tests give their own).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
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

// Bytes.
struct MemoryReading {
  std::uint64_t total = 0;
  std::uint64_t available = 0;  // free memory, and caches that the kernel would drop for programs
};

// Empty: the kernel does not report it.
std::optional<MemoryReading> read_memory(const std::filesystem::path& root = "/");

// Counts of a disk since boot.
struct DiskCounters {
  std::uint64_t reads = 0;  // completed requests
  std::uint64_t writes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
};

// Reads the counters of every block device, partitions included, by name.
std::map<std::string, DiskCounters> read_disks(const std::filesystem::path& root = "/");

// Returns the whole disks, without partitions and without RAM, loop and optical devices. Devices that are built from
// others (RAID, LVM, encryption) are left out, too, because their requests are counted again at the disks below.
std::set<std::string> whole_disks(const std::filesystem::path& root = "/");

// Returns "nvme", "ssd" or "rotating". Empty: not known. The disks of virtual machines report nothing about the
// hardware.
std::string disk_kind(const std::string& name, const std::filesystem::path& root = "/");

}  // namespace dtrain::host
