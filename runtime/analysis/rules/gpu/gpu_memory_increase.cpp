// GPU memory that grows: the mean of the last `window` data points is above the mean of as many before them by more
// than `increase` percentage points. Both windows move by a point at a time; consecutive points that fulfil the
// condition are one increase.
#include <algorithm>
#include <numeric>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct GpuMemoryIncrease {
  static constexpr const char* kWord = "GPUMemoryIncrease";
  static constexpr const char* kText = "GPU memory that grows.";
  static constexpr bool kGpusOnly = true;
  double increase = 5;  // percentage points
  std::int64_t window = 10, patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number(
        {"increase", "Percentage points by which the average of a window may be above that of the window before."},
        increase, kPercent);
    declare_window(keys, window);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

struct Increases {
  std::int64_t compared = 0, above = 0, events = 0;  // points; events: runs of points above
  double largest = 0;                                // percentage points
};

Increases find_increases(const std::vector<double>& values, const GpuMemoryIncrease& rule) {
  Increases result;
  const auto window = static_cast<std::size_t>(rule.window);
  std::vector<double> sums(values.size() + 1, 0);  // of the values before
  std::partial_sum(values.begin(), values.end(), sums.begin() + 1);
  bool was_above = false;
  for (std::size_t end = 2 * window; end <= values.size(); ++end) {
    const double now = sums[end] - sums[end - window];
    const double before = sums[end - window] - sums[end - 2 * window];
    const double increase = (now - before) / static_cast<double>(window);
    const bool is_above = increase > rule.increase;
    ++result.compared;
    result.above += is_above ? 1 : 0;
    result.events += is_above && !was_above ? 1 : 0;
    result.largest = std::max(result.largest, increase);
    was_above = is_above;
  }
  return result;
}

}  // namespace

RuleResult GpuMemoryIncrease::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "report", "increases", "Looks for GPU memory that grows by much from one window to the next.",
      "Look for tensors that are kept from step to step. Where it is meant to be so and the memory is nearly full, use "
      "a smaller batch or a GPU with more memory.");
  if (!has_gpus(data.hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t compared = 0;
  std::int64_t above = 0;
  std::int64_t most_points = 0;
  Json all = Json::array();
  const auto gpus = gpu_points(data.hosts, patience, &GpuReading::memory_percent, result.counts);
  for (const GpuPoints& gpu : gpus) {
    const Increases found = find_increases(gpu.values, *this);
    const auto points = static_cast<std::int64_t>(gpu.values.size());
    most_points = std::max(most_points, points);
    result.datapoints += points;
    result.triggered += found.events;
    compared += found.compared;
    above += found.above;
    Json one = describe(gpu);
    one["increases"] = found.events;
    one["largest_increase"] = found.largest;
    for (const auto& [name, share] : {std::pair{"min", 0.0},
                                      {"p5", 0.05},
                                      {"p25", 0.25},
                                      {"p50", 0.5},
                                      {"p75", 0.75},
                                      {"p95", 0.95},
                                      {"max", 1.0}}) {
      one[name] = quantile_of(gpu.values, share);
    }
    all.push_back(std::move(one));
  }
  if (compared == 0) return not_applicable(std::move(result), too_few_points(most_points, 2 * window));
  result.counts["gpu_points"] = result.datapoints;
  result.counts["too_early"] = result.datapoints - compared;
  result.counts["compared"] = compared;
  result.counts["above"] = above;
  result.counts["triggered"] = result.triggered;
  result.details["gpus"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_gpu_memory_increase() {
  return std::make_unique<RuleOf<GpuMemoryIncrease>>();
}

}  // namespace dtrain::analysis::rules
