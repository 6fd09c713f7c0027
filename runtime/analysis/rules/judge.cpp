#include "rules/judge.h"

#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <cmath>
#include <utility>

#include "measure/statistics.h"

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

std::optional<HostMemory> memory_of(const Machine& machine, const HostSample& sample) {
  std::optional<HostMemory> fullest;
  const auto consider = [&](const std::optional<double>& free, const std::optional<double>& total, bool of_cgroup) {
    if (!free || !total || *total <= 0) return;
    const HostMemory one{*free, *total, of_cgroup};
    if (!fullest || one.used_percent() > fullest->used_percent()) fullest = one;
  };
  consider(sample.free_memory_bytes, machine.total_memory_bytes, false);
  consider(sample.cgroup_free_bytes, sample.cgroup_limit_bytes, true);
  return fullest;
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

namespace {

WeightedValues all_values(const StepSeries& series) {
  WeightedValues values;
  values.reserve(series.steps.size());
  for (const Step& step : series.steps) values.emplace_back(step.seconds, 1);
  for (const FoldedSteps& folded : series.folded)
    values.insert(values.end(), folded.values.begin(), folded.values.end());
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

SeriesStatistics statistics_of(const StepSeries& series) {
  SeriesStatistics result;
  result.steps = static_cast<std::int64_t>(series.steps.size());
  double sum_s = 0;
  for (const Step& step : series.steps) sum_s += step.seconds;
  for (const FoldedSteps& folded : series.folded) {
    result.steps += folded.steps;
    sum_s += folded.mean_s * static_cast<double>(folded.steps);
  }
  if (result.steps == 0) return result;
  const auto count = static_cast<double>(result.steps);
  result.mean_s = sum_s / count;
  double squares = 0;
  result.min_s = series.steps.empty() ? series.folded.front().min_s : series.steps.front().seconds;
  result.max_s = result.min_s;
  for (const Step& step : series.steps) {
    squares += (step.seconds - result.mean_s) * (step.seconds - result.mean_s);
    result.min_s = std::min(result.min_s, step.seconds);
    result.max_s = std::max(result.max_s, step.seconds);
  }
  for (const FoldedSteps& folded : series.folded) {
    const double apart = folded.mean_s - result.mean_s;
    squares += folded.squares_s2 + apart * apart * static_cast<double>(folded.steps);
    result.min_s = std::min(result.min_s, folded.min_s);
    result.max_s = std::max(result.max_s, folded.max_s);
  }
  result.stddev_s = std::sqrt(squares / count);

  WeightedValues values = all_values(series);
  result.p50_s = weighted_quantile(values, result.steps, 0.50);
  result.p95_s = weighted_quantile(values, result.steps, 0.95);
  result.p99_s = weighted_quantile(values, result.steps, 0.99);
  result.median_s = result.p50_s;
  for (auto& [value, times] : values) value = std::abs(value - result.median_s);
  std::sort(values.begin(), values.end());
  result.mad_s = weighted_quantile(values, result.steps, 0.50);
  return result;
}

std::int64_t folded_above(const StepSeries& series, double threshold_s) {
  std::int64_t above = 0;
  for (const FoldedSteps& folded : series.folded) {
    if (folded.max_s <= threshold_s) continue;
    for (const auto& [value, times] : folded.values) above += value > threshold_s ? times : 0;
  }
  return above;
}

std::vector<std::int64_t> histogram_of(const StepSeries& series, double threshold_s, double from_s, double to_s,
                                       std::size_t bins) {
  std::vector<std::int64_t> counts(bins, 0);
  const double width = (to_s - from_s) / static_cast<double>(bins);
  const auto add = [&](double value, std::int64_t times) {
    if (value > threshold_s) return;
    const double at = width > 0 ? std::clamp((value - from_s) / width, 0.0, static_cast<double>(bins - 1)) : 0.0;
    counts[static_cast<std::size_t>(at)] += times;
  };
  for (const Step& step : series.steps) add(step.seconds, 1);
  for (const FoldedSteps& folded : series.folded) {
    for (const auto& [value, times] : folded.values) add(value, times);
  }
  return counts;
}

}  // namespace dtrain::analysis::rules
