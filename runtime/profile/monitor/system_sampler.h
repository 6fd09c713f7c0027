// The system metrics of a host: its GPUs, and what the kernel counts.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/host/gpus.h"
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"
#include "dtrain/host/readings.h"
#include "dtrain/profile/records.h"

namespace dtrain::profile {

struct GpuSample {
  int index = 0;
  std::optional<double> util;                    // percent
  std::optional<std::uint64_t> free_memory;      // bytes
  std::optional<double> temperature;             // degrees Celsius
  std::optional<std::size_t> foreign_processes;  // other than the ranks
  std::optional<bool> slowed_by_heat;

  static void fields(auto&& visit, auto&... gpu) {
    visit("index", gpu.index...);
    visit("gpu_util", gpu.util...);
    visit("gpu_free_memory", gpu.free_memory...);
    visit("gpu_temperature", gpu.temperature...);
    visit("gpu_foreign_processes", gpu.foreign_processes...);
    visit("gpu_thermal_throttle", gpu.slowed_by_heat...);
  }
};

// Reads the GPUs for the monitor without ever delaying it: a thread of this class makes the calls to the driver, which
// may take long or hang. The public functions are for the monitor's thread.
class GpuSampler {
 public:
  GpuSampler(const std::string& library, const Logger& logger);
  // Does not wait for a thread that hangs in the driver: the process is about to end.
  ~GpuSampler();
  GpuSampler& operator=(GpuSampler&&) = delete;

  // Returns the current values of each GPU that reports any. If the driver takes longer than `patience`, returns its
  // last answer since the sample before. Empty: there was no answer, so this sample has no GPUs.
  std::vector<GpuSample> sample(const std::set<pid_t>& ranks, std::chrono::milliseconds patience);
  // Returns the GPUs once they are known: not empty in one call at most.
  std::vector<host::GpuInfo> take_new();

 private:
  // State that is shared with the thread, which may outlive this object.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t asked = 0;     // readings the monitor wants
    std::uint64_t answered = 0;  // number of the last answered request
    std::uint64_t given = 0;     // number of the last request whose answer is in a sample
    std::vector<host::GpuReading> readings;
    std::vector<host::GpuInfo> found;  // not taken yet
    bool stop = false;
    bool ended = false;  // also when there is no GPU
  };
  static void run(const std::shared_ptr<Shared>& shared, const std::string& library, const Logger& logger);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

struct RankProcess {
  int rank = 0;
  pid_t pid = 0;
};

// Rates are averages over `interval_ns`, which ends at `time_ns` (monotonic clock).
struct SystemSample {
  std::int64_t time_ns = 0;
  std::int64_t interval_ns = 0;
  std::optional<double> net_throughput_sent, net_throughput_recv;     // bytes a second
  std::optional<double> disk_iops;                                    // requests a second
  std::optional<double> disk_throughput_read, disk_throughput_write;  // bytes a second
  std::optional<double> free_memory;                                  // bytes
  std::optional<double> cgroup_free_memory, cgroup_memory_limit;      // bytes, of the cgroup that leaves the least
  // The quota that stopped the ranks most: percent of its periods; percent of the time, 100: one CPU stopped.
  std::optional<double> cpu_throttled_periods, cpu_throttled_time;
  std::optional<double> cpu_util_simple, io_wait;  // percent of all cores
  std::vector<double> cpu_util_per_core;           // percent of each
  std::vector<ProcessRecord> processes;
  std::vector<GpuSample> gpus;  // from a GpuSampler
};

// A metric of the host that is one number. Dumps and the metrics endpoint have the metrics of this list, in its order;
// the summary and the report find them in the dump.
struct HostMetric {
  std::optional<double> SystemSample::*value;
  const char* name;  // in dumps
  const char* unit;
  int decimals;       // in dumps
  const char* gauge;  // its name at the metrics endpoint
  const char* help;   // the text there
};
inline constexpr std::array kHostMetrics{
    HostMetric{&SystemSample::net_throughput_sent, "net_throughput_sent", "bytes/s", 0,
               "dtrain_net_sent_bytes_per_second", "Sent through network interfaces"},
    HostMetric{&SystemSample::net_throughput_recv, "net_throughput_recv", "bytes/s", 0,
               "dtrain_net_received_bytes_per_second", "Received through network interfaces"},
    HostMetric{&SystemSample::disk_iops, "disk_iops", "requests/s", 1, "dtrain_disk_requests_per_second",
               "Completed reads and writes of disks"},
    HostMetric{&SystemSample::disk_throughput_read, "disk_throughput_read", "bytes/s", 0,
               "dtrain_disk_read_bytes_per_second", "Read from disks"},
    HostMetric{&SystemSample::disk_throughput_write, "disk_throughput_write", "bytes/s", 0,
               "dtrain_disk_written_bytes_per_second", "Written to disks"},
    HostMetric{&SystemSample::free_memory, "free_memory", "bytes", 0, "dtrain_free_memory_bytes",
               "Memory that programs can still get"},
    HostMetric{&SystemSample::cgroup_free_memory, "cgroup_free_memory", "bytes", 0, "dtrain_cgroup_free_memory_bytes",
               "Memory that the limit of the ranks' cgroup leaves"},
    HostMetric{&SystemSample::cgroup_memory_limit, "cgroup_memory_limit", "bytes", 0,
               "dtrain_cgroup_memory_limit_bytes", "That limit"},
    HostMetric{&SystemSample::cpu_throttled_periods, "cpu_throttled_periods", "percent", 1,
               "dtrain_cpu_throttled_periods_percent",
               "Periods in which the CPU quota of the ranks' cgroup was used up"},
    HostMetric{&SystemSample::cpu_throttled_time, "cpu_throttled_time", "percent", 1, "dtrain_cpu_throttled_percent",
               "Time for which the quota stopped the ranks; 100: one CPU"},
    HostMetric{&SystemSample::cpu_util_simple, "cpu_util_simple", "percent", 2, "dtrain_cpu_util_percent",
               "Busy time of all cores of the machine"},
    HostMetric{&SystemSample::io_wait, "io_wait", "percent", 2, "dtrain_io_wait_percent",
               "Time in which cores waited for a disk"},
};

// Turns the kernel's counters into the system metrics of one host. Values that the machine does not report are left
// out, never guessed. One thread.
class SystemSampler {
 public:
  // Takes the first reading. `root`: the directory with proc/ and sys/. The clock must outlive this object.
  explicit SystemSampler(const Clock& clock, std::filesystem::path root = "/");

  // Returns a sample of the time since the previous reading.
  SystemSample sample(std::span<const RankProcess> ranks);

 private:
  struct Reading {
    std::int64_t time_ns = 0;
    std::map<std::string, CpuQuota> quotas;  // by group
    std::optional<host::CpuReading> cpu;
    std::map<std::string, host::NetworkCounters> network;
    std::map<std::string, host::DiskCounters> disks;
    std::map<pid_t, host::ProcessUsage> processes;  // ranks and the processes that they have started
    std::map<pid_t, std::vector<pid_t>> children;   // of ranks
    std::map<pid_t, std::chrono::nanoseconds> core_waits;
  };
  Reading read(std::span<const RankProcess> ranks);
  void add_network(SystemSample& sample, const Reading& now, double seconds);
  void add_disks(SystemSample& sample, const Reading& now, double seconds);
  void add_cgroups(SystemSample& sample, const Reading& now, double seconds);
  // Ranks may have cgroups of their own (a job step of Slurm's has).
  void find_cgroups(std::span<const RankProcess> ranks);

  const Clock& clock_;
  std::filesystem::path root_;
  std::set<std::string> interfaces_;  // the interfaces that count
  int since_looked_ = 0;              // samples since `interfaces_` was determined
  std::set<std::string> disks_;
  std::set<pid_t> known_ranks_;  // whose cgroups are among these
  Cgroups cgroups_;
  Reading before_;
};

// Returns facts about the machine for the first line of the monitor's dump (docs/profile-format.md, "machine"): the
// analysis, which may run on another machine, needs them to judge the samples. Unknown facts are left out. Any thread.
Json machine_facts(const std::filesystem::path& root = "/");

}  // namespace dtrain::profile
