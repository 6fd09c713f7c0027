// Makes the series of hosts from the samples of their monitors and the facts about their machines.
#include <algorithm>
#include <map>
#include <set>

#include "dtrain/base/json.h"
#include "findings/series.h"
#include "measure/contention.h"
#include "measure/system_metrics.h"
#include "read/json_fields.h"

namespace dtrain::analysis::findings {
namespace {

std::optional<double> sum(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return *a + *b;
}

std::vector<int> integers(const Json& list) {
  std::vector<int> result;
  for (const Json& item : list) {
    if (item.is_number_integer()) result.push_back(item.get<int>());
  }
  return result;
}

// Returns the cores that the monitor or a rank of the host may use: a rank that mpirun has bound starts its monitor on
// its own cores.
std::vector<std::vector<int>> usable_cores(const Json& machine, const std::vector<const RankProfile*>& ranks) {
  std::set<int> usable;
  for (const int cpu : integers(list_at(machine, "cpus"))) usable.insert(cpu);
  for (const RankProfile* rank : ranks) usable.insert(rank->cpus.begin(), rank->cpus.end());
  std::vector<std::vector<int>> cores;
  std::set<int> known;
  for (const Json& core : list_at(machine, "physical_cores")) {
    std::vector<int> threads;
    for (const int cpu : integers(core)) {
      if (usable.contains(cpu) && known.insert(cpu).second) threads.push_back(cpu);
    }
    if (!threads.empty()) cores.push_back(std::move(threads));
  }
  for (const int cpu : usable) {
    if (!known.contains(cpu)) cores.push_back({cpu});  // the CPU's core is not recorded
  }
  return cores;
}

Machine machine_of(const MonitorProfile& monitor, const std::vector<const RankProfile*>& ranks) {
  const Json& facts = object_at(monitor.header, "machine");
  Machine machine;
  machine.cores = usable_cores(facts, ranks);
  machine.cpu_limit = value_at<double>(facts, "cpu_limit");
  machine.total_memory_bytes = value_at<double>(facts, "total_memory");
  machine.facts = facts;
  if (const auto bits = value_at<double>(facts, "vector_bits")) machine.vector_bits = static_cast<std::int64_t>(*bits);
  machine.bf16 = value_at<bool>(facts, "bf16");
  if (const auto disks = facts.find("disks"); disks != facts.end() && disks->is_array()) {
    machine.disks.emplace();
    for (const Json& disk : *disks) {
      if (disk.is_object()) machine.disks->push_back({text(disk, "name"), text(disk, "kind")});
    }
  }
  if (const auto interfaces = facts.find("interfaces"); interfaces != facts.end() && interfaces->is_array()) {
    machine.network.emplace();
    for (const Json& interface : *interfaces) {
      if (!interface.is_object()) continue;
      const auto bits_per_s = value_at<double>(interface, "bits_per_s");
      machine.network->push_back({text(interface, "name"), bits_per_s ? std::optional(*bits_per_s / 8) : std::nullopt});
    }
  }
  return machine;
}

GpuReading reading_of(const Metrics& metrics, std::int64_t total_memory_bytes) {
  GpuReading reading;
  reading.util_percent = metric_of(metrics, "gpu_util");
  reading.celsius = metric_of(metrics, "gpu_temperature");
  const auto free = metric_of(metrics, "gpu_free_memory");
  if (free && total_memory_bytes > 0) {
    reading.memory_percent = 100 * (1 - *free / static_cast<double>(total_memory_bytes));
  }
  if (const auto foreign = metric_of(metrics, "gpu_foreign_processes")) {
    reading.foreign_processes = static_cast<std::int64_t>(*foreign);
  }
  if (const auto slowed = metric_of(metrics, "gpu_thermal_throttle")) reading.slowed_by_heat = *slowed > 0;
  return reading;
}

HostSample sample_of(const SystemLine& line, const std::map<std::int64_t, std::size_t>& gpus,
                     const std::vector<std::int64_t>& total_memory_bytes, std::size_t cpus) {
  HostSample sample;
  sample.time_ns = line.time_ns;
  sample.cpu_percent = metric_of(line.metrics, "cpu_util_simple");
  sample.io_wait_percent = metric_of(line.metrics, "io_wait");
  sample.free_memory_bytes = metric_of(line.metrics, "free_memory");
  sample.sent = metric_of(line.metrics, "net_throughput_sent");
  sample.received = metric_of(line.metrics, "net_throughput_recv");
  sample.disk = sum(metric_of(line.metrics, "disk_throughput_read"), metric_of(line.metrics, "disk_throughput_write"));
  sample.cores_percent = line.cpu_util_per_core;
  sample.cgroup_free_bytes = metric_of(line.metrics, "cgroup_free_memory");
  sample.cgroup_limit_bytes = metric_of(line.metrics, "cgroup_memory_limit");
  sample.throttled_periods_percent = metric_of(line.metrics, "cpu_throttled_periods");
  for (const ProcessLine& process : line.processes) {
    const double wait = process.cpu_wait_percent.value_or(-1);
    if (wait < 0) continue;
    sample.ranks.push_back({process.rank, std::max(0.0, wait - throttled_percent(line, wait, cpus).value_or(0))});
  }
  for (const auto& [index, metrics] : line.gpus) {
    const auto known = gpus.find(index);
    if (known == gpus.end()) continue;
    sample.gpus.resize(gpus.size());
    sample.gpus[known->second] = reading_of(metrics, total_memory_bytes[known->second]);
  }
  return sample;
}

// Adds the GPUs of the run. The host's other GPUs may be idle or do work of other programs.
void add_gpus(const MonitorProfile& monitor, const std::optional<std::map<std::int64_t, int>>& ranks, HostSeries& host,
              std::map<std::int64_t, std::size_t>& at, std::vector<std::int64_t>& total_memory_bytes) {
  for (const GpuLine& line : monitor.gpus) {
    if (ranks && !ranks->contains(line.index)) continue;
    if (!at.try_emplace(line.index, host.gpus.size()).second) continue;
    Gpu gpu;
    gpu.index = line.index;
    gpu.name = line.name;
    if (line.slowdown_celsius > 0) gpu.slowdown_celsius = line.slowdown_celsius;
    if (line.compute_capability > 0) gpu.compute_capability = line.compute_capability;
    host.gpus.push_back(std::move(gpu));
    total_memory_bytes.push_back(line.total_memory_bytes);
  }
}

void set_training(const std::vector<const RankProfile*>& ranks, HostSeries& host) {
  for (const RankProfile* rank : ranks) {
    std::int64_t begins = kNever;
    std::int64_t ends = 0;
    for (const StepLine& step : rank->steps) {
      begins = std::min(begins, step.start_ns);
      ends = std::max(ends, step.start_ns + step.wall_ns);
    }
    for (const WindowLine& window : rank->windows) {
      begins = std::min(begins, window.start_ns);
      ends = std::max(ends, window.end_ns);
    }
    if (begins == kNever) continue;
    host.training_begins = std::min(host.training_begins, begins);
    host.training_ends = host.training_ends == kNever ? ends : std::max(host.training_ends, ends);
  }
}

}  // namespace

std::vector<HostSeries> host_series(const RunProfile& profile) {
  std::vector<HostSeries> hosts;
  const bool with_gpus = trains_on_gpus(profile);
  for (const MonitorProfile& monitor : profile.monitors) {
    std::vector<const RankProfile*> ranks;
    for (const RankProfile& rank : profile.ranks) {
      if (profile.monitor_of(rank) == &monitor) ranks.push_back(&rank);
    }
    HostSeries host;
    host.agent = monitor.agent;
    host.host = monitor.host;
    host.machine = machine_of(monitor, ranks);
    std::map<std::int64_t, std::size_t> gpus;
    std::vector<std::int64_t> total_memory_bytes;
    if (with_gpus) add_gpus(monitor, ranks_by_gpu(profile, monitor), host, gpus, total_memory_bytes);
    set_training(ranks, host);
    host.samples.reserve(monitor.samples.size());
    std::set<int> cpus;
    for (const RankProfile* rank : ranks) cpus.insert(rank->cpus.begin(), rank->cpus.end());
    for (const SystemLine& line : monitor.samples) {
      host.samples.push_back(sample_of(line, gpus, total_memory_bytes, cpus.size()));
    }
    const auto computing = computing_percent(ranks, monitor.samples);
    for (std::size_t i = 0; i < computing.size(); ++i) host.samples[i].computing_percent = computing[i];
    hosts.push_back(std::move(host));
  }
  return hosts;
}

}  // namespace dtrain::analysis::findings
