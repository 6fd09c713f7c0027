// Rules that look for times without computing: the CPUs do other work, or wait for disks.
#include <algorithm>
#include <functional>
#include <optional>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

// The settings of CPUBottleneck and IOBottleneck. They count data points at which a resource of a host is busy and
// nothing computes there, neither its GPUs nor, if CPUs train, its ranks.
struct BottleneckLimits {
  double share_percent = 0;  // of the data points; more trigger
  double busy_above = 0, computing_below = 0;
  std::int64_t patience = 0;
};

// Returns the busiest GPU's utilization; empty: no GPU reports it.
std::optional<double> busiest_gpu(const HostSample& sample) {
  std::optional<double> busiest;
  for (const GpuReading& gpu : sample.gpus) {
    if (gpu.util_percent) busiest = std::max(busiest.value_or(0), *gpu.util_percent);
  }
  return busiest;
}

// Judges by `busy`, the metric of the busy resource in percent.
RuleResult judge_bottleneck(RuleResult result, Hosts hosts, const BottleneckLimits& limits,
                            const std::function<std::optional<double>(const HostSample&)>& busy) {
  const bool on_gpus = has_gpus(hosts);
  std::int64_t unknown = 0;
  std::int64_t busy_points = 0;
  std::int64_t bottlenecks = 0;
  Json all = Json::array();
  for (const HostSeries& host : hosts) {
    if (on_gpus && host.gpus.empty()) continue;
    const Judged judged = judged_samples(host, limits.patience);
    count_samples(result.counts, host, judged);
    std::int64_t points = 0;
    std::int64_t here = 0;
    for (const HostSample& sample : judged.samples) {
      const auto percent_busy = busy(sample);
      const auto computing = on_gpus ? busiest_gpu(sample) : sample.computing_percent;
      if (!percent_busy || !computing) {
        ++unknown;
        continue;
      }
      ++points;
      const bool is_busy = *percent_busy > limits.busy_above;
      busy_points += is_busy ? 1 : 0;
      here += is_busy && *computing < limits.computing_below ? 1 : 0;
    }
    result.datapoints += points;
    bottlenecks += here;
    const double share = percent(here, points);
    const bool triggers = share > limits.share_percent;
    result.triggered += triggers ? 1 : 0;
    all.push_back({{"agent", host.agent},
                   {"host", host.host},
                   {"data_points", points},
                   {"bottlenecks", here},
                   {"percent", share},
                   {"triggered", triggers}});
  }
  if (result.datapoints == 0) return not_applicable(std::move(result), kNoSystemSample);
  result.counts["without_reading"] = unknown;
  result.counts["not_busy"] = result.datapoints - busy_points;
  result.counts["busy_and_computing"] = busy_points - bottlenecks;
  result.counts["bottlenecks"] = bottlenecks;
  result.counts["triggered"] = result.triggered;
  result.details["hosts"] = std::move(all);
  return result;
}

// Nothing is computed while the CPUs are busy: the training waits for their other work.
struct CpuBottleneck {
  static constexpr const char* kWord = "CPUBottleneck";
  static constexpr const char* kText = "GPUs (on CPUs: ranks) that are idle while the cores are busy.";
  double threshold = 50, cpu_threshold = 90, gpu_threshold = 10;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"cpu_threshold", "CPU utilization, in percent, above which the cores are busy."}, cpu_threshold,
                kPercent);
    keys.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."}, gpu_threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult CpuBottleneck::judge(const RuleData& data) const {
  return judge_bottleneck(
      begin_result(
          kWord, "report", "hosts",
          "Looks for times in which the CPUs are busy and all GPUs of the host are idle (on CPUs: its "
          "ranks hardly compute), and triggers where these are more than the threshold's share of the training.",
          "Prepare data before the training, make reading a sample cheaper, or keep other programs away."),
      data.hosts, {threshold, cpu_threshold, gpu_threshold, patience},
      [](const HostSample& sample) { return sample.cpu_percent; });
}

std::unique_ptr<Rule> make_cpu_bottleneck() {
  return std::make_unique<RuleOf<CpuBottleneck>>();
}

// Nothing is computed while the CPUs wait for disks: the training waits for data.

namespace {

struct IoBottleneck {
  static constexpr const char* kWord = "IOBottleneck";
  static constexpr const char* kText = "GPUs (on CPUs: ranks) that are idle while the cores wait for disks.";
  double threshold = 50, io_threshold = 50, gpu_threshold = 10;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"io_threshold", "I/O wait, in percent, above which the cores wait for disks."}, io_threshold,
                kPercent);
    keys.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."}, gpu_threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult IoBottleneck::judge(const RuleData& data) const {
  return judge_bottleneck(
      begin_result(kWord, "report", "hosts",
                   "Looks for times in which the CPUs wait for disks and all GPUs of the host are idle (on CPUs: "
                   "its ranks hardly compute), and triggers where these are more than the threshold's share of the "
                   "training.",
                   "Keep the data in memory, use a binary format that is read in sequence, or a faster disk."),
      data.hosts, {threshold, io_threshold, gpu_threshold, patience},
      [](const HostSample& sample) { return sample.io_wait_percent; });
}

std::unique_ptr<Rule> make_io_bottleneck() {
  return std::make_unique<RuleOf<IoBottleneck>>();
}

}  // namespace dtrain::analysis::rules
