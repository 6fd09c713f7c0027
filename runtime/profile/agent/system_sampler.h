// Turns the kernel's counters into the system metrics of one host. What the machine does not report is left
// out, never guessed. One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/gpu_sampler.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/host/cpu_times.h"
#include "dtrain/host/disks.h"
#include "dtrain/host/interfaces.h"
#include "dtrain/host/processes.h"

namespace dtrain::profile {

struct RankProcess {
  int rank = 0;
  pid_t pid = 0;
};

struct ProcessSample {
  int rank = 0;
  pid_t pid = 0;
  std::uint64_t resident_bytes = 0;
  double cpu_percent = 0;                  // 100: one core busy
  std::optional<double> cpu_wait_percent;  // of the time in which its main thread could run and had to wait for a core
};

// Rates are averages over `interval_ns`, which ends at `time_ns` (monotonic clock).
struct SystemSample {
  std::int64_t time_ns = 0;
  std::int64_t interval_ns = 0;
  std::optional<double> net_throughput_sent, net_throughput_recv;     // bytes a second
  std::optional<double> disk_iops;                                    // requests a second
  std::optional<double> disk_throughput_read, disk_throughput_write;  // bytes a second
  std::optional<double> free_memory;                                  // bytes
  std::optional<double> cpu_util_simple, io_wait;                     // percent of all cores
  std::vector<double> cpu_util_per_core;                              // percent of each
  std::vector<ProcessSample> processes;
  std::vector<GpuSample> gpus;  // from a GpuSampler
};

class SystemSampler {
 public:
  // Takes the first reading. `root` is where proc/ and sys/ are; the clock must outlive this.
  explicit SystemSampler(const Clock& clock, std::filesystem::path root = "/");

  // Since the reading before.
  SystemSample sample(std::span<const RankProcess> ranks);

 private:
  struct Reading {
    std::int64_t time_ns = 0;
    std::optional<host::CpuReading> cpu;
    std::map<std::string, host::NetworkCounters> network;
    std::map<std::string, host::DiskCounters> disks;
    std::map<pid_t, host::ProcessUsage> processes;
    std::map<pid_t, std::chrono::nanoseconds> core_waits;
  };
  Reading read(std::span<const RankProcess> ranks);
  void add_network(SystemSample& sample, const Reading& now, double seconds);
  void add_disks(SystemSample& sample, const Reading& now, double seconds);

  const Clock& clock_;
  std::filesystem::path root_;
  std::set<std::string> interfaces_;  // those counted
  std::set<std::string> disks_;
  Reading before_;
};

// What the machine is, for the first line of the agent's dump (docs/profile-format.md, "machine"): the analysis, which
// may run on another machine, needs it to judge the samples. What is not known is left out. Any thread.
Json machine_facts(const std::filesystem::path& root = "/");

}  // namespace dtrain::profile
