// Statistics of a host's samples, and which of its GPUs are the run's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

// --- the GPUs of a host on which the run's ranks train: the monitor samples all GPUs of the host ---

// True if the run trains on GPUs according to its plan; without a plan, true if monitors sampled GPUs.
bool trains_on_gpus(const RunProfile& run);

// True if some rank has recorded that it trains on a GPU.
bool ranks_have_gpus(const RunProfile& run);

// True if the phases are the times of the ranks' GPUs (profiling.sync_timings).
bool has_times_of_gpus(const RunProfile& run);

// Returns the rank of each GPU (by NVML's index) that a rank on the monitor's host has. Empty: some rank did not record
// its GPU, so any of the GPUs may be the run's.
std::optional<std::map<std::int64_t, int>> ranks_by_gpu(const RunProfile& run, const MonitorProfile& monitor);

// The value of a metric in a sample; empty: it was not recorded.
std::optional<double> metric_of(const Metrics& metrics, std::string_view name);

// --- memory: the machine's, and the part of it that the limits of cgroups leave ---

struct MemoryRoom {
  double free = 0, total = 0;  // bytes; total 0: not known
  bool of_cgroup = false;
  std::string whose;  // "its host", "the cgroup /docker/1f"
  double used_percent() const { return total > 0 ? 100 * (1 - free / total) : 0; }
};
// Returns the room in a sample: the machine's memory, and that of the cgroup with the least room. The kernel kills
// processes if either is full.
std::vector<MemoryRoom> memory_rooms(const MonitorProfile& monitor, const SystemLine& sample);

// Returns the name of the cgroup with a limit of so many bytes, from the machine's facts: "the cgroup /docker/1f"; "a
// cgroup": not known.
std::string cgroup_with_limit(const Json& machine, double bytes);

// The CPU quota of the ranks' cgroup.
struct QuotaFacts {
  double cpus = 0, period_s = 0.1;
  std::string whose;  // "the cgroup /docker/1f"
};
std::optional<QuotaFacts> cpu_quota_of(const MonitorProfile& monitor);

MonitorSummary summarize_monitor(const RunProfile& run, const MonitorProfile& monitor);

}  // namespace dtrain::analysis
