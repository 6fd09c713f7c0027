// Windows in which a GPU, its memory and the processors all have much to spare: the batch could be larger.
#include <algorithm>

#include "rules/all_rules.h"
#include "rules/judge.h"
#include "rules/windows.h"

namespace dtrain::analysis::rules {
namespace {

// Of each data point that tells all three.
struct Points {
  std::vector<double> cpu, util, memory;
};

Points points_of(std::span<const HostSample> samples, std::size_t gpu) {
  Points points;
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

RuleResult batch_size(Hosts hosts, const Rules::BatchSize& parameters) {
  RuleResult result =
      begin_result("BatchSize", "report", "windows",
                   "Looks for times in which a GPU, its memory and the processors all have much to spare.",
                   "The batch is too small for these GPUs: use a larger one, or smaller GPUs.");
  if (!has_gpus(hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t windows = 0;
  std::int64_t left_over = 0;
  std::int64_t most_points = 0;
  Json all = Json::array();
  for (const HostSeries& host : hosts) {
    const Judged judged = judged_samples(host, parameters.patience);
    count_samples(result.counts, host, judged);
    for (std::size_t at = 0; at < host.gpus.size(); ++at) {
      const Points points = points_of(judged.samples, at);
      const auto cpu = windows_of(points.cpu, parameters.window);
      const auto util = windows_of(points.util, parameters.window);
      const auto memory = windows_of(points.memory, parameters.window);
      Json one = describe(GpuPoints{&host, at, {}});
      one["windows"] = Json::array();
      for (std::size_t i = 0; i < cpu.size(); ++i) {
        const double cpu_p95 = quantile_of(cpu[i], 0.95);
        const double util_p95 = quantile_of(util[i], 0.95);
        const double memory_p95 = quantile_of(memory[i], 0.95);
        const bool spare = cpu_p95 < parameters.cpu_threshold_p95 && util_p95 < parameters.gpu_threshold_p95 &&
                           memory_p95 < parameters.gpu_memory_threshold_p95;
        result.triggered += spare ? 1 : 0;
        one["windows"].push_back({{"cpu_p95", cpu_p95},
                                  {"gpu_p95", util_p95},
                                  {"gpu_memory_p95", memory_p95},
                                  {"verdict", spare ? "much to spare" : "fine"}});
      }
      const auto found = static_cast<std::int64_t>(points.cpu.size());
      const auto in_windows = static_cast<std::int64_t>(cpu.size()) * parameters.window;
      most_points = std::max(most_points, found);
      windows += static_cast<std::int64_t>(cpu.size());
      left_over += found - in_windows;
      result.datapoints += in_windows;
      all.push_back(std::move(one));
    }
  }
  if (windows == 0) return not_applicable(std::move(result), too_few_points(most_points, parameters.window));
  result.counts["gpu_points_in_windows"] = result.datapoints;
  result.counts["gpu_points_left_over"] = left_over;
  result.counts["windows"] = windows;
  result.counts["fine"] = windows - result.triggered;
  result.counts["triggered"] = result.triggered;
  result.details["gpus"] = std::move(all);
  return result;
}

}  // namespace dtrain::analysis::rules
