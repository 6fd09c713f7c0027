#include "rules/judge.h"

#include <algorithm>
#include <utility>

namespace dtrain::analysis::rules {

Judged judged_samples(const HostSeries& host, std::int64_t patience) {
  Judged result;
  if (host.samples.empty()) return result;
  const double patience_ns = static_cast<double>(patience) / kDataPointsPerSecond * 1e9;
  const auto skipped = [&](const HostSample& sample) {
    return static_cast<double>(sample.time_ns - host.samples.front().time_ns) < patience_ns &&
           sample.time_ns < host.training_begins;
  };
  const auto first = std::find_if_not(host.samples.begin(), host.samples.end(), skipped);
  const auto last = std::find_if(first, host.samples.end(),
                                 [&](const HostSample& sample) { return sample.time_ns > host.training_ends; });
  result.patience = first - host.samples.begin();
  result.after_training = host.samples.end() - last;
  result.samples = {first, last};
  return result;
}

RuleResult begin_result(std::string name, std::string group, std::string unit, std::string description,
                        std::string recommendation) {
  RuleResult result;
  result.name = std::move(name);
  result.group = std::move(group);
  result.unit = std::move(unit);
  result.description = std::move(description);
  result.recommendation = std::move(recommendation);
  return result;
}

RuleResult not_applicable(RuleResult result, std::string why) {
  result.applicable = false;
  result.why_not = std::move(why);
  return result;
}

RuleResult count_each(RuleResult result, const char* of, std::size_t all, std::int64_t not_known, Json details) {
  const auto count = static_cast<std::int64_t>(all);
  result.counts[of] = count;
  result.counts["not_known"] = not_known;
  result.counts["fine"] = count - not_known - result.triggered;
  result.counts["triggered"] = result.triggered;
  result.details[of] = std::move(details);
  return result;
}

bool has_gpus(Hosts hosts) {
  return std::any_of(hosts.begin(), hosts.end(), [](const HostSeries& host) { return !host.gpus.empty(); });
}

void count_samples(Json& counts, const HostSeries& host, const Judged& judged) {
  const auto add = [&](const char* key, std::int64_t value) {
    counts[key] = counts.value(key, std::int64_t{0}) + value;
  };
  add("samples", static_cast<std::int64_t>(host.samples.size()));
  add("skipped_by_patience", judged.patience);
  add("after_training", judged.after_training);
  add("judged", static_cast<std::int64_t>(judged.samples.size()));
}

std::vector<GpuPoints> gpu_points(Hosts hosts, std::int64_t patience, GpuMetric metric, Json& counts) {
  std::vector<GpuPoints> result;
  for (const HostSeries& host : hosts) {
    const Judged judged = judged_samples(host, patience);
    count_samples(counts, host, judged);
    for (std::size_t at = 0; at < host.gpus.size(); ++at) {
      GpuPoints& gpu = result.emplace_back(GpuPoints{&host, at, {}});
      for (const HostSample& sample : judged.samples) {
        if (at >= sample.gpus.size()) continue;
        if (const auto& value = sample.gpus[at].*metric) gpu.values.push_back(*value);
      }
    }
  }
  return result;
}

Json describe(const GpuPoints& gpu) {
  const Gpu& known = gpu.host->gpus[gpu.at];
  return {{"agent", gpu.host->agent}, {"host", gpu.host->host}, {"gpu", known.index}, {"name", known.name}};
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace dtrain::analysis::rules
