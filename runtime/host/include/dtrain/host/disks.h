// Traffic of this machine's disks, from /proc/diskstats. Any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace dtrain::host {

// Since boot.
struct DiskCounters {
  std::uint64_t reads = 0;  // completed requests
  std::uint64_t writes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
};

// Every block device that the kernel counts, partitions included, by name.
std::map<std::string, DiskCounters> read_disks(const std::filesystem::path& root = "/");

// The whole disks among them, without partitions and without RAM, loop and optical devices. Devices that are built from
// others (RAID, LVM, encryption) are left out, too, because their requests are counted again at the disks below.
std::set<std::string> whole_disks(const std::filesystem::path& root = "/");

// "nvme", "ssd" or "rotating". Empty: not known. What the disks of virtual machines report says nothing about the
// hardware.
std::string disk_kind(const std::string& name, const std::filesystem::path& root = "/");

}  // namespace dtrain::host
