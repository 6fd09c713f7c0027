#include "measure/system_metrics.h"

#include <algorithm>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/json.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

bool trains_on_gpus(const RunProfile& run) {
  const std::string decided = text(run.plan, "slot_type");
  if (!decided.empty()) return decided == "cuda";
  const Json* const resources = find_object(run.experiment, "resources");
  return !resources || text(*resources, "slot_type") == "cuda";
}

bool ranks_have_gpus(const RunProfile& run) {
  return std::ranges::any_of(run.ranks, [](const RankProfile& rank) { return find_object(rank.header, "gpu"); });
}

bool has_times_of_gpus(const RunProfile& run) {
  if (!ranks_have_gpus(run)) return false;
  return value_at<bool>(object_at(run.experiment, "profiling"), "sync_timings").value_or(true);
}

std::optional<std::map<std::int64_t, int>> ranks_by_gpu(const RunProfile& run, const MonitorProfile& monitor) {
  std::map<std::int64_t, int> ranks;
  bool any = false;
  for (const RankProfile& rank : run.ranks) {
    if (run.monitor_of(rank) != &monitor) continue;
    any = true;
    const Json* const recorded = find_object(rank.header, "gpu");
    if (!recorded) return std::nullopt;
    const std::string uuid = text(*recorded, "uuid");
    const std::int64_t index = integer(*recorded, "index", -1);
    // A MIG instance is only a part of a GPU: the GPU's samples are not the rank's alone, and no name matches the
    // instance.
    const auto gpu = std::ranges::find_if(
        monitor.gpus, [&](const GpuLine& line) { return uuid.empty() ? line.index == index : line.uuid == uuid; });
    if (gpu != monitor.gpus.end()) ranks.try_emplace(gpu->index, rank.rank);
  }
  return any ? std::optional(ranks) : std::nullopt;
}

std::optional<double> metric_of(const Metrics& metrics, std::string_view name) {
  for (const auto& [key, value] : metrics) {
    if (key == name) return value;
  }
  return std::nullopt;
}

namespace {

const Json& machine_of(const MonitorProfile& monitor) {
  return object_at(monitor.header, "machine");
}

// Metrics by name, in the order in which they came.
class MetricValues {
 public:
  void add(const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      auto [entry, is_new] = values_.try_emplace(name);
      if (is_new) names_.push_back(name);
      entry->second.push_back(value);
    }
  }

  std::vector<MetricSummary> summary(const Json& units) const {
    std::vector<MetricSummary> result;
    for (const std::string& name : names_) {
      std::vector<double> values = values_.at(name);
      MetricSummary metric;
      metric.name = name;
      metric.unit = text(units, name);
      metric.mean = mean(values);
      metric.min = *std::min_element(values.begin(), values.end());
      metric.max = *std::max_element(values.begin(), values.end());
      metric.p50 = quantile(values, 0.50);
      metric.p95 = quantile(values, 0.95);
      metric.p99 = quantile(values, 0.99);
      result.push_back(std::move(metric));
    }
    return result;
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> values_;
};

}  // namespace

std::string cgroup_with_limit(const Json& machine, double bytes) {
  for (const Json& limit : list_at(machine, "memory_limits")) {
    if (limit.is_object() && number(limit, "bytes") == bytes) return describe_cgroup(text(limit, "group"));
  }
  return "a cgroup";
}

std::vector<MemoryRoom> memory_rooms(const MonitorProfile& monitor, const SystemLine& sample) {
  const Json& machine = machine_of(monitor);
  std::vector<MemoryRoom> rooms;
  if (const auto free = metric_of(sample.metrics, "free_memory")) {
    rooms.push_back({*free, number(machine, "total_memory"), false, "its host"});
  }
  const auto free = metric_of(sample.metrics, "cgroup_free_memory");
  const auto limit = metric_of(sample.metrics, "cgroup_memory_limit");
  if (free && limit) rooms.push_back({*free, *limit, true, cgroup_with_limit(machine, *limit)});
  return rooms;
}

std::optional<QuotaFacts> cpu_quota_of(const MonitorProfile& monitor) {
  const Json& quota = object_at(machine_of(monitor), "cpu_quota");
  if (number(quota, "cpus") <= 0) return std::nullopt;
  QuotaFacts facts{.cpus = number(quota, "cpus"), .whose = describe_cgroup(text(quota, "group"))};
  if (const double period = number(quota, "period_ns"); period > 0) facts.period_s = period / 1e9;
  return facts;
}

MonitorSummary summarize_monitor(const RunProfile& run, const MonitorProfile& monitor) {
  MetricValues values;
  std::map<std::int64_t, MetricValues> gpu_values;
  std::map<std::int64_t, GpuLine> gpus;
  for (const GpuLine& gpu : monitor.gpus) gpus[gpu.index] = gpu;
  for (const SystemLine& sample : monitor.samples) {
    values.add(sample.metrics);
    for (const auto& [index, metrics] : sample.gpus) gpu_values[index].add(metrics);
  }
  MonitorSummary summary;
  summary.agent = monitor.agent;
  summary.host = monitor.host;
  summary.samples = static_cast<std::int64_t>(monitor.samples.size());
  const Json& units = object_at(monitor.header, "units");
  summary.metrics = values.summary(units);
  const bool on_gpus = trains_on_gpus(run);
  const auto ranks = ranks_by_gpu(run, monitor);
  for (const auto& [index, of_gpu] : gpu_values) {
    const auto known = gpus.find(index);
    const GpuLine gpu = known != gpus.end() ? known->second : GpuLine{};
    GpuSummary& added = summary.gpus.emplace_back();
    added = {index, gpu.uuid, gpu.name, gpu.total_memory_bytes, of_gpu.summary(units)};
    added.is_of_run = on_gpus && (!ranks || ranks->contains(index));
    if (on_gpus && ranks && ranks->contains(index)) added.rank = ranks->at(index);
  }
  return summary;
}

}  // namespace dtrain::analysis
