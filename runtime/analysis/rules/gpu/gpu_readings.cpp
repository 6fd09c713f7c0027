// Rules that judge each GPU by one reading: its utilization, its memory, its temperature, its processes.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct GpuVerdict {
  bool triggered = false;
  Json facts = Json::object();
};

// Calls `judge` with the values of each GPU that reported the metric, and adds up the results. If no GPU did, the rule
// does not apply for the reason `why_not`.
RuleResult judge_gpus(RuleResult result, Hosts hosts, std::int64_t patience, GpuMetric metric,
                      const std::string& why_not, const std::function<GpuVerdict(const std::vector<double>&)>& judge) {
  if (!has_gpus(hosts)) return not_applicable(std::move(result), kNoGpu);
  std::int64_t unknown = 0;
  Json all = Json::array();
  const auto gpus = gpu_points(hosts, patience, metric, result.counts);
  for (const GpuPoints& gpu : gpus) {
    if (gpu.values.empty()) {
      ++unknown;
      continue;
    }
    const GpuVerdict verdict = judge(gpu.values);
    result.datapoints += static_cast<std::int64_t>(gpu.values.size());
    result.triggered += verdict.triggered ? 1 : 0;
    Json one = describe(gpu);
    one.update(verdict.facts);
    one["triggered"] = verdict.triggered;
    all.push_back(std::move(one));
  }
  if (all.empty()) return not_applicable(std::move(result), why_not);
  return count_each(std::move(result), "gpus", gpus.size(), unknown, std::move(all));
}

// Triggers for each GPU for which `holds` is true at more than `threshold_percent` of the data points that decide it.
RuleResult judge_gpu_share(RuleResult result, Hosts hosts, double threshold_percent, const std::string& why_not,
                           const std::function<std::optional<bool>(const Gpu&, const GpuReading&)>& holds) {
  if (!has_gpus(hosts)) return not_applicable(std::move(result), kNoGpu);
  std::size_t gpus = 0;
  std::int64_t unknown = 0;
  std::int64_t affected_points = 0;
  Json all = Json::array();
  for (const HostSeries& host : hosts) {
    const Judged judged = judged_samples(host, 0);
    count_samples(result.counts, host, judged);
    for (std::size_t at = 0; at < host.gpus.size(); ++at) {
      std::int64_t points = 0;
      std::int64_t affected = 0;
      for (const HostSample& sample : judged.samples) {
        const auto found = at < sample.gpus.size() ? holds(host.gpus[at], sample.gpus[at]) : std::nullopt;
        points += found ? 1 : 0;
        affected += found.value_or(false) ? 1 : 0;
      }
      ++gpus;
      unknown += points == 0 ? 1 : 0;
      const double share = percent(affected, points);
      const bool triggers = share > threshold_percent;
      result.datapoints += points;
      affected_points += affected;
      result.triggered += triggers ? 1 : 0;
      Json one = describe({&host, at, {}});
      one.update({{"data_points", points}, {"affected", affected}, {"percent", share}, {"triggered", triggers}});
      all.push_back(std::move(one));
    }
  }
  if (result.datapoints == 0) return not_applicable(std::move(result), why_not);
  result.counts["gpu_points"] = result.datapoints;
  result.counts["affected_points"] = affected_points;
  return count_each(std::move(result), "gpus", gpus, unknown, std::move(all));
}

// Each GPU's mean utilization during the training: it should be 90% and more.
struct GpuUtilization {
  static constexpr const char* kWord = "GPUUtilization";
  static constexpr const char* kText = "GPUs with a low mean utilization.";
  static constexpr bool kGpusOnly = true;
  double threshold = 90;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "The mean utilization, in percent, should be at least this."}, threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult GpuUtilization::judge(const RuleData& data) const {
  return judge_gpus(begin_result(kWord, "system", "GPUs",
                                 "Compares each GPU's mean utilization during the training with what it should be.",
                                 "Look at the waterfall for what the GPUs wait for: data, communication, or the "
                                 "CPUs."),
                    data.hosts, patience, &GpuReading::util_percent,
                    "no GPU reported its utilization during the training", [&](const std::vector<double>& busy) {
                      const double mean =
                          std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
                      return GpuVerdict{mean < threshold, {{"mean_percent", mean}}};
                    });
}

std::unique_ptr<Rule> make_gpu_utilization() {
  return std::make_unique<RuleOf<GpuUtilization>>();
}

// GPU memory that was nearly full at some time of the run: a little more, and the run ends.

namespace {

struct GpuMemoryFull {
  static constexpr const char* kWord = "GPUMemoryFull";
  static constexpr const char* kText = "GPU memory that is nearly full.";
  static constexpr bool kGpusOnly = true;
  double threshold = 95;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage in use above which the memory is nearly full."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult GpuMemoryFull::judge(const RuleData& data) const {
  return judge_gpus(begin_result(kWord, "system", "GPUs",
                                 "Looks for GPU memory that was nearly full at some time: a little more ends the run.",
                                 "Use a smaller batch with optimizations.aggregation_frequency above 1, put "
                                 "dtrain::checkpoint() around layers of the trial's model, or keep fewer tensors."),
                    data.hosts, 0, &GpuReading::memory_percent, "no GPU reported how much of its memory is in use",
                    [&](const std::vector<double>& used) {
                      const double most = *std::max_element(used.begin(), used.end());
                      return GpuVerdict{most > threshold, {{"most_percent", most}}};
                    });
}

std::unique_ptr<Rule> make_gpu_memory_full() {
  return std::make_unique<RuleOf<GpuMemoryFull>>();
}

// GPUs that slow down because they are hot: the driver reports it, or the temperature is near the slowdown temperature.

namespace {

struct GpuTemperature {
  static constexpr const char* kWord = "GPUTemperature";
  static constexpr const char* kText = "GPUs that slow down because they are hot.";
  static constexpr bool kGpusOnly = true;
  double threshold = 1;
  double margin = 5;  // degrees Celsius below the temperature at which the GPU slows down
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"margin", "A GPU is hot from this many degrees Celsius below the temperature at which it slows down."},
                margin, {0, 100});
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult GpuTemperature::judge(const RuleData& data) const {
  return judge_gpu_share(
      begin_result(kWord, "system", "GPUs", "Looks for GPUs that slow down because they are hot, or are about to.",
                   "Cool the machine better; until then a lower power limit is slower at times, but evenly so."),
      data.hosts, threshold, "no GPU reported its temperature together with that at which it slows down",
      [&](const Gpu& gpu, const GpuReading& reading) -> std::optional<bool> {
        const bool slowed = reading.slowed_by_heat.value_or(false);
        if (reading.celsius && gpu.slowdown_celsius) {
          return slowed || *reading.celsius > *gpu.slowdown_celsius - margin;
        }
        return reading.slowed_by_heat;
      });
}

std::unique_ptr<Rule> make_gpu_temperature() {
  return std::make_unique<RuleOf<GpuTemperature>>();
}

// Programs that are not ranks of the run and compute on its GPUs.

namespace {

struct GpuForeignProcesses {
  static constexpr const char* kWord = "GPUForeignProcesses";
  static constexpr const char* kText = "Other programs on the run's GPUs.";
  static constexpr bool kGpusOnly = true;
  double threshold = 0;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which there may be one."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult GpuForeignProcesses::judge(const RuleData& data) const {
  return judge_gpu_share(
      begin_result(kWord, "system", "GPUs", "Looks for programs that are no ranks of this run and compute on its GPUs.",
                   "End those programs, or train on GPUs of your own."),
      data.hosts, threshold, "no GPU reported which programs compute on it",
      [](const Gpu&, const GpuReading& reading) -> std::optional<bool> {
        if (!reading.foreign_processes) return std::nullopt;
        return *reading.foreign_processes > 0;
      });
}

std::unique_ptr<Rule> make_gpu_foreign_processes() {
  return std::make_unique<RuleOf<GpuForeignProcesses>>();
}

}  // namespace dtrain::analysis::rules
