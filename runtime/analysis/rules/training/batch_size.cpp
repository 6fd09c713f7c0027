// Windows in which the computing device (a GPU, or the ranks on their CPUs), its memory and the CPUs all have much to
// spare: the batch could be larger.
#include <algorithm>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct BatchSize {
  static constexpr const char* kWord = "BatchSize";
  static constexpr const char* kText =
      "A batch too small to use the cores, the GPU and its memory (on CPUs: the ranks' computing time, the host's "
      "memory). It is too small where the 95th percentiles of a window are all below their thresholds.";
  double cpu_threshold_p95 = 70, gpu_threshold_p95 = 70, gpu_memory_threshold_p95 = 70;
  std::int64_t window = 500, patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"cpu_threshold_p95", "CPU utilization, in percent."}, cpu_threshold_p95, kPercent);
    keys.number({"gpu_threshold_p95", "GPU utilization, in percent."}, gpu_threshold_p95, kPercent);
    keys.number({"gpu_memory_threshold_p95", "GPU memory in use, in percent."}, gpu_memory_threshold_p95, kPercent);
    declare_window(keys, window);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

// The utilization at each data point that has all three values.
struct UsePoints {
  std::vector<double> cpu, util, memory;
};

// Returns the points of a host whose CPUs train, with the host's memory in use; 0 if the memory is not known.
UsePoints points_on_processors(const HostSeries& host, std::span<const HostSample> samples) {
  UsePoints points;
  for (const HostSample& sample : samples) {
    if (!sample.cpu_percent || !sample.computing_percent) continue;
    points.cpu.push_back(*sample.cpu_percent);
    points.util.push_back(*sample.computing_percent);
    const auto memory = memory_of(host.machine, sample);
    points.memory.push_back(memory ? memory->used_percent() : 0);
  }
  return points;
}

UsePoints points_of(std::span<const HostSample> samples, std::size_t gpu) {
  UsePoints points;
  for (const HostSample& sample : samples) {
    if (gpu >= sample.gpus.size()) continue;
    const GpuReading& reading = sample.gpus[gpu];
    if (!sample.cpu_percent || !reading.util_percent || !reading.memory_percent) continue;
    points.cpu.push_back(*sample.cpu_percent);
    points.util.push_back(*reading.util_percent);
    points.memory.push_back(*reading.memory_percent);
  }
  return points;
}

}  // namespace

RuleResult BatchSize::judge(const RuleData& data) const {
  RuleResult result =
      begin_result(kWord, "report", "windows",
                   "Looks for times in which a GPU, its memory and the CPUs all have much to spare (on CPUs: "
                   "the ranks' computing, the host's memory and the CPUs).",
                   "The batch is too small for this hardware: use a larger one, or fewer slots.");
  const bool on_gpus = has_gpus(data.hosts);
  std::int64_t windows = 0;
  std::int64_t left_over = 0;
  std::int64_t most_points = 0;
  Json all = Json::array();
  for (const HostSeries& host : data.hosts) {
    const Judged judged = judged_samples(host, patience);
    count_samples(result.counts, host, judged);
    for (std::size_t at = 0; at < (on_gpus ? host.gpus.size() : 1); ++at) {
      const UsePoints points = on_gpus ? points_of(judged.samples, at) : points_on_processors(host, judged.samples);
      const auto cpu = windows_of(points.cpu, window);
      const auto util = windows_of(points.util, window);
      const auto memory = windows_of(points.memory, window);
      Json one = on_gpus ? describe(GpuPoints{&host, at, {}}) : Json{{"agent", host.agent}, {"host", host.host}};
      one["windows"] = Json::array();
      for (std::size_t i = 0; i < cpu.size(); ++i) {
        const double cpu_p95 = quantile_of(cpu[i], 0.95);
        const double util_p95 = quantile_of(util[i], 0.95);
        const double memory_p95 = quantile_of(memory[i], 0.95);
        const bool spare =
            cpu_p95 < cpu_threshold_p95 && util_p95 < gpu_threshold_p95 && memory_p95 < gpu_memory_threshold_p95;
        result.triggered += spare ? 1 : 0;
        one["windows"].push_back({{"cpu_p95", cpu_p95},
                                  {"computing_p95", util_p95},
                                  {"memory_p95", memory_p95},
                                  {"verdict", spare ? "much to spare" : "fine"}});
      }
      const auto found = static_cast<std::int64_t>(points.cpu.size());
      const auto in_windows = static_cast<std::int64_t>(cpu.size()) * window;
      most_points = std::max(most_points, found);
      windows += static_cast<std::int64_t>(cpu.size());
      left_over += found - in_windows;
      result.datapoints += in_windows;
      all.push_back(std::move(one));
    }
  }
  if (windows == 0)
    return not_applicable(std::move(result), too_few_points(most_points, window, on_gpus ? "a GPU" : "a host"));
  result.counts["points_in_windows"] = result.datapoints;
  result.counts["points_left_over"] = left_over;
  result.counts["windows"] = windows;
  result.counts["fine"] = windows - result.triggered;
  result.counts["triggered"] = result.triggered;
  result.details[on_gpus ? "gpus" : "hosts"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_batch_size() {
  return std::make_unique<RuleOf<BatchSize>>();
}

}  // namespace dtrain::analysis::rules
