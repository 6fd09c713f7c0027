// Each GPU's utilization within windows of data points: low if even the 95th percentile is low, fluctuating if that is
// high and the 5th is low.
#include <algorithm>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct LowGpuUtilization {
  static constexpr const char* kWord = "LowGPUUtilization";
  static constexpr const char* kText = "Utilization of a GPU that is low or fluctuates.";
  static constexpr bool kGpusOnly = true;
  double threshold_p95 = 70, threshold_p5 = 10;
  std::int64_t window = 500, patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold_p95", "Low: the 95th percentile of a window, in percent, is below this."}, threshold_p95,
                kPercent);
    keys.number({"threshold_p5", "Fluctuating: the 95th percentile is not low, but the 5th percentile is below this."},
                threshold_p5, kPercent);
    declare_window(keys, window);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult LowGpuUtilization::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "report", "windows",
      "Looks for utilization of GPUs that is low, or that fluctuates: bottlenecks, blocking calls, or a batch that is "
      "too small.",
      "Look for bottlenecks and blocking calls, or use a larger batch.");
  if (!has_gpus(data.hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t windows = 0;
  std::int64_t left_over = 0;
  std::int64_t low = 0;
  std::int64_t fluctuating = 0;
  std::int64_t most_points = 0;
  Json all = Json::array();
  const auto gpus = gpu_points(data.hosts, patience, &GpuReading::util_percent, result.counts);
  for (const GpuPoints& gpu : gpus) {
    const auto points = static_cast<std::int64_t>(gpu.values.size());
    most_points = std::max(most_points, points);
    Json one = describe(gpu);
    one["windows"] = Json::array();
    std::int64_t in_windows = 0;
    for (const auto& values : windows_of(gpu.values, window)) {
      const double p95 = quantile_of(values, 0.95);
      const double p5 = quantile_of(values, 0.05);
      const bool is_low = p95 < threshold_p95;
      const bool fluctuates = !is_low && p5 < threshold_p5;
      low += is_low ? 1 : 0;
      fluctuating += fluctuates ? 1 : 0;
      in_windows += window;
      ++windows;
      one["windows"].push_back({{"p95", p95},
                                {"p5", p5},
                                {"verdict", is_low       ? "low"
                                            : fluctuates ? "fluctuating"
                                                         : "fine"}});
    }
    left_over += points - in_windows;
    result.datapoints += in_windows;
    all.push_back(std::move(one));
  }
  if (windows == 0) return not_applicable(std::move(result), too_few_points(most_points, window));
  result.triggered = low + fluctuating;
  result.counts["gpu_points_in_windows"] = result.datapoints;
  result.counts["gpu_points_left_over"] = left_over;
  result.counts["windows"] = windows;
  result.counts["fine"] = windows - result.triggered;
  result.counts["low"] = low;
  result.counts["fluctuating"] = fluctuating;
  result.counts["triggered"] = result.triggered;
  result.details["gpus"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_low_gpu_utilization() {
  return std::make_unique<RuleOf<LowGpuUtilization>>();
}

}  // namespace dtrain::analysis::rules
