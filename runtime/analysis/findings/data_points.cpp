// Data points that rules judge: those that count, and what is made of them.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "findings/judgement.h"

namespace dtrain::analysis::findings {

std::span<const HostSample> judged_samples(const HostSeries& host, std::int64_t patience, Finding& result) {
  const double patience_ns = static_cast<double>(patience) / kDataPointsPerSecond * 1e9;
  const auto skipped = [&](const HostSample& sample) {
    return static_cast<double>(sample.time_ns - host.samples.front().time_ns) < patience_ns &&
           sample.time_ns < host.training_begins;
  };
  const auto first = std::find_if_not(host.samples.begin(), host.samples.end(), skipped);
  const auto last = std::find_if(first, host.samples.end(),
                                 [&](const HostSample& sample) { return sample.time_ns > host.training_ends; });
  const auto add = [&](const char* key, std::int64_t value) {
    result.counts[key] = result.counts.value(key, std::int64_t{0}) + value;
  };
  add("samples", static_cast<std::int64_t>(host.samples.size()));
  add("skipped_by_patience", first - host.samples.begin());
  add("after_training", host.samples.end() - last);
  add("judged", last - first);
  return {first, last};
}

void Items::add(Json facts, std::int64_t points, bool triggers) {
  triggers = triggers && points > 0;
  without_points_ += points == 0 ? 1 : 0;
  result_.datapoints += points;
  result_.triggered += triggers ? 1 : 0;
  facts["triggered"] = triggers;
  all_.push_back(std::move(facts));
}

std::string Items::finish(const std::string& why_not) {
  if (result_.datapoints == 0) return why_not;
  const auto count = static_cast<std::int64_t>(all_.size()) + unlisted_;
  const std::int64_t unknown = unlisted_ + without_points_;
  return finish_with({{plural_, count}, {"not_known", unknown}, {"fine", count - unknown - result_.triggered}});
}

std::string Items::finish_with(const Json& counts) {
  result_.counts.update(counts);
  result_.counts["triggered"] = result_.triggered;
  result_.details[plural_] = std::move(all_);
  return {};
}

std::optional<HostMemory> memory_of(const Machine& machine, const HostSample& sample) {
  std::optional<HostMemory> fullest;
  const auto consider = [&](const std::optional<double>& free, const std::optional<double>& total, bool of_cgroup) {
    if (!free || !total || *total <= 0) return;
    const HostMemory memory{*free, *total, of_cgroup};
    if (!fullest || memory.used_percent() > fullest->used_percent()) fullest = memory;
  };
  consider(sample.free_memory_bytes, machine.total_memory_bytes, false);
  consider(sample.cgroup_free_bytes, sample.cgroup_limit_bytes, true);
  return fullest;
}

bool has_gpus(Hosts hosts) {
  return std::any_of(hosts.begin(), hosts.end(), [](const HostSeries& host) { return !host.gpus.empty(); });
}

std::vector<GpuPoints> gpu_points(Hosts hosts, std::int64_t patience, GpuMetric metric, Finding& result) {
  std::vector<GpuPoints> gpus;
  for (const HostSeries& host : hosts) {
    const auto samples = judged_samples(host, patience, result);
    for (std::size_t at = 0; at < host.gpus.size(); ++at) {
      GpuPoints& gpu = gpus.emplace_back(GpuPoints{&host, at, {}});
      for (const HostSample& sample : samples) {
        if (at >= sample.gpus.size()) continue;
        if (const auto& value = sample.gpus[at].*metric) gpu.values.push_back(*value);
      }
    }
  }
  return gpus;
}

Json describe(const HostSeries& host) {
  return {{"agent", host.agent}, {"host", host.host}};
}

Json describe(const GpuPoints& gpu) {
  Json facts = describe(*gpu.host);
  facts.update({{"gpu", gpu.host->gpus[gpu.at].index}, {"name", gpu.host->gpus[gpu.at].name}});
  return facts;
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::vector<std::span<const double>> windows_of(std::span<const double> values, std::int64_t window) {
  std::vector<std::span<const double>> windows;
  const auto size = static_cast<std::size_t>(window);
  for (std::size_t begin = 0; begin + size <= values.size(); begin += size) {
    windows.push_back(values.subspan(begin, size));
  }
  return windows;
}

double quantile_of(std::span<const double> values, double share) {
  std::vector<double> copy(values.begin(), values.end());
  return quantile(copy, share);
}

std::string too_few_points(std::int64_t most, std::int64_t window, const char* of) {
  return fmt::format("a window is {} data points, two a second, and the training has no more than {} of {}", window,
                     most, of);
}

}  // namespace dtrain::analysis::findings
