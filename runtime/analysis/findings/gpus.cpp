// Rules that judge each GPU: its utilization, its memory, its temperature, the processes on it.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "findings/judgement.h"

namespace dtrain::analysis::findings {
namespace {

struct GpuVerdict {
  bool triggers = false;
  Json facts = Json::object();
};

// Calls `judge` with the values of each GPU that reported the metric.
std::string judge_gpus(const RuleData& data, const Parameters& p, Finding& result, GpuMetric metric,
                       const char* why_not, const std::function<GpuVerdict(const std::vector<double>&)>& judge) {
  Items gpus(result, "gpus");
  for (const GpuPoints& gpu : gpu_points(data.hosts, p.patience(), metric, result)) {
    if (gpu.values.empty()) {
      gpus.unknown();
      continue;
    }
    const GpuVerdict verdict = judge(gpu.values);
    Json facts = describe(gpu);
    facts.update(verdict.facts);
    gpus.add(std::move(facts), static_cast<std::int64_t>(gpu.values.size()), verdict.triggers);
  }
  return gpus.finish(why_not);
}

// Triggers for each GPU for which `holds` is true at more than the threshold of the data points that decide it.
std::string judge_gpu_share(const RuleData& data, const Parameters& p, Finding& result, const char* why_not,
                            const std::function<std::optional<bool>(const Gpu&, const GpuReading&)>& holds) {
  std::int64_t affected_points = 0;
  Items gpus(result, "gpus");
  for (const HostSeries& host : data.hosts) {
    const auto samples = judged_samples(host, 0, result);
    for (std::size_t at = 0; at < host.gpus.size(); ++at) {
      std::int64_t points = 0, affected = 0;
      for (const HostSample& sample : samples) {
        const auto found = at < sample.gpus.size() ? holds(host.gpus[at], sample.gpus[at]) : std::nullopt;
        points += found ? 1 : 0;
        affected += found.value_or(false) ? 1 : 0;
      }
      const double share = percent(affected, points);
      affected_points += affected;
      Json facts = describe({&host, at, {}});
      facts.update({{"data_points", points}, {"affected", affected}, {"percent", share}});
      gpus.add(std::move(facts), points, share > p["threshold"]);
    }
  }
  if (result.datapoints > 0) {
    result.counts["gpu_points"] = result.datapoints;
    result.counts["affected_points"] = affected_points;
  }
  return gpus.finish(why_not);
}

std::string judge_low_utilization(const RuleData& data, const Parameters& p, Finding& result) {
  std::int64_t windows = 0, left_over = 0, low = 0, fluctuating = 0, most_points = 0;
  Json all = Json::array();
  for (const GpuPoints& gpu : gpu_points(data.hosts, p.patience(), &GpuReading::util_percent, result)) {
    Json facts = describe(gpu);
    facts["windows"] = Json::array();
    const auto own = windows_of(gpu.values, p.count("window"));
    for (const auto& values : own) {
      const double p95 = quantile_of(values, 0.95);
      const double p5 = quantile_of(values, 0.05);
      const bool is_low = p95 < p["threshold_p95"];
      const bool fluctuates = !is_low && p5 < p["threshold_p5"];
      low += is_low ? 1 : 0;
      fluctuating += fluctuates ? 1 : 0;
      const char* const verdict = is_low ? "low" : fluctuates ? "fluctuating" : "fine";
      facts["windows"].push_back({{"p95", p95}, {"p5", p5}, {"verdict", verdict}});
    }
    const auto points = static_cast<std::int64_t>(gpu.values.size());
    const std::int64_t in_windows = static_cast<std::int64_t>(own.size()) * p.count("window");
    most_points = std::max(most_points, points);
    windows += static_cast<std::int64_t>(own.size());
    left_over += points - in_windows;
    result.datapoints += in_windows;
    all.push_back(std::move(facts));
  }
  if (windows == 0) return too_few_points(most_points, p.count("window"));
  result.triggered = low + fluctuating;
  result.counts.update({{"gpu_points_in_windows", result.datapoints},
                        {"gpu_points_left_over", left_over},
                        {"windows", windows},
                        {"fine", windows - result.triggered},
                        {"low", low},
                        {"fluctuating", fluctuating},
                        {"triggered", result.triggered}});
  result.details["gpus"] = std::move(all);
  return {};
}

// LoadBalancing compares the GPUs of a run by the histograms of their utilization: bins of 2 percent, and the
// Jensen-Shannon distance between two of them (the square root of the Jensen-Shannon divergence with natural
// logarithms; Lin, "Divergence measures based on the Shannon entropy", IEEE Trans. Inf. Theory 37(1), 1991): 0 for
// equal histograms, 0.83 if nothing overlaps. With few data points, histograms differ by chance: for two equal GPUs
// with n and m points in k bins, the expected divergence is about (k-1)/8 (1/n + 1/m), the bias of entropies of samples
// (Miller, 1955). A pair for which that bias alone is half of the threshold stays undecided.

constexpr std::size_t kBins = 50;
constexpr std::size_t kMostListed = 100;  // pairs, in the details
using Histogram = std::array<std::int64_t, kBins>;

Histogram histogram_of(const std::vector<double>& values) {
  Histogram histogram{};
  for (const double value : values) {
    ++histogram[static_cast<std::size_t>(std::clamp(value / 2, 0.0, static_cast<double>(kBins - 1)))];
  }
  return histogram;
}

double total_of(const Histogram& histogram) {
  return static_cast<double>(std::accumulate(histogram.begin(), histogram.end(), std::int64_t{0}));
}

double distance_between(const Histogram& a, const Histogram& b) {
  const double all_a = total_of(a);
  const double all_b = total_of(b);
  double divergence = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    const double p = static_cast<double>(a[i]) / all_a;
    const double q = static_cast<double>(b[i]) / all_b;
    const double middle = (p + q) / 2;
    if (p > 0) divergence += p / 2 * std::log(p / middle);
    if (q > 0) divergence += q / 2 * std::log(q / middle);
  }
  return std::sqrt(std::max(0.0, divergence));
}

double distance_by_chance(const Histogram& a, const Histogram& b) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < kBins; ++i) used += a[i] + b[i] > 0 ? 1 : 0;
  return std::sqrt(static_cast<double>(used - 1) / 8 * (1 / total_of(a) + 1 / total_of(b)));
}

std::string judge_load_balancing(const RuleData& data, const Parameters& p, Finding& result) {
  auto gpus = gpu_points(data.hosts, p.patience(), &GpuReading::util_percent, result);
  const bool several = gpus.size() >= 2;
  std::erase_if(gpus, [](const GpuPoints& gpu) { return gpu.values.empty(); });
  if (!several) return "the run has one GPU";
  if (gpus.size() < 2) return "fewer than two GPUs reported their utilization during the training";
  std::vector<Histogram> histograms;
  Json all = Json::array();
  for (const GpuPoints& gpu : gpus) {
    histograms.push_back(histogram_of(gpu.values));
    Json facts = describe(gpu);
    facts["histogram"] = histograms.back();
    all.push_back(std::move(facts));
    result.datapoints += static_cast<std::int64_t>(gpu.values.size());
  }
  std::int64_t pairs = 0, undecided = 0;
  Json unequal = Json::array();
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    for (std::size_t b = a + 1; b < gpus.size(); ++b) {
      ++pairs;
      if (distance_by_chance(histograms[a], histograms[b]) > p["threshold"] / 2) {
        ++undecided;
        continue;
      }
      const double distance = distance_between(histograms[a], histograms[b]);
      if (distance <= p["threshold"]) continue;
      ++result.triggered;
      if (unequal.size() < kMostListed) unequal.push_back({{"gpus", {a, b}}, {"distance", distance}});
    }
  }
  if (undecided == pairs) return "too few data points to distinguish GPUs by them";
  result.counts.update({{"pairs", pairs},
                        {"undecided", undecided},
                        {"alike", pairs - undecided - result.triggered},
                        {"triggered", result.triggered}});
  result.details = {{"gpus", std::move(all)}, {"unequal", std::move(unequal)}};
  return {};
}

struct Increases {
  std::int64_t compared = 0, above = 0, events = 0;  // points; events: runs of points above
  double largest = 0;                                // percentage points
};

// Both windows move by a point at a time.
Increases find_increases(const std::vector<double>& values, std::size_t window, double threshold) {
  Increases result;
  std::vector<double> sums(values.size() + 1, 0);  // of the values before
  std::partial_sum(values.begin(), values.end(), sums.begin() + 1);
  bool was_above = false;
  for (std::size_t end = 2 * window; end <= values.size(); ++end) {
    const double now = sums[end] - sums[end - window];
    const double before = sums[end - window] - sums[end - 2 * window];
    const double increase = (now - before) / static_cast<double>(window);
    const bool is_above = increase > threshold;
    ++result.compared;
    result.above += is_above ? 1 : 0;
    result.events += is_above && !was_above ? 1 : 0;
    result.largest = std::max(result.largest, increase);
    was_above = is_above;
  }
  return result;
}

std::string judge_memory_increase(const RuleData& data, const Parameters& p, Finding& result) {
  std::int64_t compared = 0, above = 0, most_points = 0;
  Json all = Json::array();
  for (const GpuPoints& gpu : gpu_points(data.hosts, p.patience(), &GpuReading::memory_percent, result)) {
    const Increases found = find_increases(gpu.values, static_cast<std::size_t>(p.count("window")), p["increase"]);
    const auto points = static_cast<std::int64_t>(gpu.values.size());
    most_points = std::max(most_points, points);
    result.datapoints += points;
    result.triggered += found.events;
    compared += found.compared;
    above += found.above;
    Json facts = describe(gpu);
    facts["increases"] = found.events;
    facts["largest_increase"] = found.largest;
    for (const auto& [name, share] : {std::pair{"min", 0.0},
                                      {"p5", 0.05},
                                      {"p25", 0.25},
                                      {"p50", 0.5},
                                      {"p75", 0.75},
                                      {"p95", 0.95},
                                      {"max", 1.0}}) {
      facts[name] = quantile_of(gpu.values, share);
    }
    all.push_back(std::move(facts));
  }
  if (compared == 0) return too_few_points(most_points, 2 * p.count("window"));
  result.counts.update({{"gpu_points", result.datapoints},
                        {"too_early", result.datapoints - compared},
                        {"compared", compared},
                        {"above", above},
                        {"triggered", result.triggered}});
  result.details["gpus"] = std::move(all);
  return {};
}

}  // namespace

// Judges the utilization within windows of data points: low if even the 95th percentile is low, fluctuating if that is
// high and the 5th is low.
Judgement low_gpu_utilization() {
  return {.id = "LowGPUUtilization",
          .text = "Utilization of a GPU that is low or fluctuates.",
          .group = "report",
          .unit = "windows",
          .title =
              "Looks for utilization of GPUs that is low, or that fluctuates: bottlenecks, blocking calls, or a "
              "batch that is too small.",
          .advice = "Look for bottlenecks and blocking calls, or use a larger batch.",
          .without_gpus = kNoGpu,
          .parameters = {real("threshold_p95", "Low: the 95th percentile of a window, in percent, is below this.", 70),
                         real("threshold_p5",
                              "Fluctuating: the 95th percentile is not low, but the 5th percentile is below this.", 10),
                         window(500), kPatience},
          .judge = judge_low_utilization};
}

Judgement load_balancing() {
  return {.id = "LoadBalancing",
          .text = "Utilization that differs between GPUs.",
          .group = "report",
          .unit = "GPU pairs",
          .title =
              "Compares the GPUs by the histograms of their utilization: in data-parallel training they should be "
              "alike.",
          .advice =
              "Give every rank the same work (the same batch on equal GPUs), and look at the ranks of the GPUs "
              "that differ.",
          .without_gpus = kNoGpu,
          .parameters = {real("threshold",
                              "Jensen-Shannon distance of two histograms of utilization, from 0 (the same) to 0.83 "
                              "(nothing in common), above which two GPUs differ.",
                              0.2, {0, 1}),
                         kPatience},
          .judge = judge_load_balancing};
}

// Judges the growth of memory: the mean of the last `window` data points is above the mean of as many before them by
// more than `increase` percentage points. Consecutive points that fulfil the condition are one increase.
Judgement gpu_memory_increase() {
  return {.id = "GPUMemoryIncrease",
          .text = "GPU memory that grows.",
          .group = "report",
          .unit = "increases",
          .title = "Looks for GPU memory that grows by much from one window to the next.",
          .advice =
              "Look for tensors that are kept from step to step. Where it is meant to be so and the memory is "
              "nearly full, use a smaller batch or a GPU with more memory.",
          .without_gpus = kNoGpu,
          .parameters = {real("increase",
                              "Percentage points by which the average of a window may be above that of the window "
                              "before.",
                              5),
                         window(10), kPatience},
          .judge = judge_memory_increase};
}

Judgement gpu_utilization() {
  return {
      .id = "GPUUtilization",
      .text = "GPUs with a low mean utilization.",
      .group = "system",
      .unit = "GPUs",
      .title = "Compares each GPU's mean utilization during the training with what it should be.",
      .advice = "Look at the waterfall for what the GPUs wait for: data, communication, or the CPUs.",
      .without_gpus = kNoGpu,
      .parameters = {real("threshold", "The mean utilization, in percent, should be at least this.", 90), kPatience},
      .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
        return judge_gpus(data, p, result, &GpuReading::util_percent,
                          "no GPU reported its utilization during the training", [&](const auto& busy) {
                            const double mean =
                                std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
                            return GpuVerdict{mean < p["threshold"], {{"mean_percent", mean}}};
                          });
      }};
}

Judgement gpu_memory_full() {
  return {.id = "GPUMemoryFull",
          .text = "GPU memory that is nearly full.",
          .group = "system",
          .unit = "GPUs",
          .title = "Looks for GPU memory that was nearly full at some time: a little more ends the run.",
          .advice =
              "Use a smaller batch with optimizations.aggregation_frequency above 1, put dtrain::checkpoint() "
              "around layers of the trial's model, or keep fewer tensors.",
          .without_gpus = kNoGpu,
          .parameters = {real("threshold", "Percentage in use above which the memory is nearly full.", 95)},
          .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
            return judge_gpus(data, p, result, &GpuReading::memory_percent,
                              "no GPU reported how much of its memory is in use", [&](const auto& used) {
                                const double most = *std::max_element(used.begin(), used.end());
                                return GpuVerdict{most > p["threshold"], {{"most_percent", most}}};
                              });
          }};
}

// A GPU slows down because it is hot if the driver reports it, or if the temperature is near the slowdown temperature.
Judgement gpu_temperature() {
  return {.id = "GPUTemperature",
          .text = "GPUs that slow down because they are hot.",
          .group = "system",
          .unit = "GPUs",
          .title = "Looks for GPUs that slow down because they are hot, or are about to.",
          .advice = "Cool the machine better; until then a lower power limit is slower at times, but evenly so.",
          .without_gpus = kNoGpu,
          .parameters = {real("threshold", "Percentage of the data points at which this may be so.", 1),
                         real("margin",
                              "A GPU is hot from this many degrees Celsius below the temperature at which it slows "
                              "down.",
                              5)},
          .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
            return judge_gpu_share(data, p, result,
                                   "no GPU reported its temperature together with that at which it slows down",
                                   [&](const Gpu& gpu, const GpuReading& reading) -> std::optional<bool> {
                                     if (!reading.celsius || !gpu.slowdown_celsius) return reading.slowed_by_heat;
                                     return reading.slowed_by_heat.value_or(false) ||
                                            *reading.celsius > *gpu.slowdown_celsius - p["margin"];
                                   });
          }};
}

Judgement gpu_foreign_processes() {
  return {.id = "GPUForeignProcesses",
          .text = "Other programs on the run's GPUs.",
          .group = "system",
          .unit = "GPUs",
          .title = "Looks for programs that are no ranks of this run and compute on its GPUs.",
          .advice = "End those programs, or train on GPUs of your own.",
          .without_gpus = kNoGpu,
          .parameters = {real("threshold", "Percentage of the data points at which there may be one.", 0)},
          .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
            return judge_gpu_share(data, p, result, "no GPU reported which programs compute on it",
                                   [](const Gpu&, const GpuReading& reading) -> std::optional<bool> {
                                     if (!reading.foreign_processes) return std::nullopt;
                                     return *reading.foreign_processes > 0;
                                   });
          }};
}

}  // namespace dtrain::analysis::findings
