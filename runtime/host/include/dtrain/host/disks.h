// Traffic of this machine's disks, from /proc/diskstats. Any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace dtrain::host {

// Counts since boot.
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
