// Compares the GPUs of a run by the histograms of their utilization: bins of 2 percent, and the Jensen-Shannon distance
// between two of them (the square root of the Jensen-Shannon divergence with natural logarithms; Lin, "Divergence
// measures based on the Shannon entropy", IEEE Trans. Inf. Theory 37(1), 1991): 0 for equal histograms, 0.83 if nothing
// overlaps. With few data points, histograms differ by chance: for two equal GPUs with n and m points in k bins, the
// expected divergence is about (k-1)/8 (1/n + 1/m), the bias of entropies of samples (Miller, 1955). A pair for which
// that bias alone is half of the threshold stays undecided.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct LoadBalancing {
  static constexpr const char* kWord = "LoadBalancing";
  static constexpr const char* kText = "Utilization that differs between GPUs.";
  static constexpr bool kGpusOnly = true;
  double threshold = 0.2;  // distance of two histograms, see the rule
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold",
                 "Jensen-Shannon distance of two histograms of utilization, from 0 (the same) to 0.83 (nothing in "
                 "common), above which two GPUs differ."},
                threshold, {0, 1});
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

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

}  // namespace

RuleResult LoadBalancing::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "report", "GPU pairs",
      "Compares the GPUs by the histograms of their utilization: in data-parallel training they should be alike.",
      "Give every rank the same work (the same batch on equal GPUs), and look at the ranks of the GPUs that differ.");
  if (!has_gpus(data.hosts)) return not_applicable(std::move(result), kNoGpu);
  auto gpus = gpu_points(data.hosts, patience, &GpuReading::util_percent, result.counts);
  const auto known = static_cast<std::int64_t>(gpus.size());
  std::erase_if(gpus, [](const GpuPoints& gpu) { return gpu.values.empty(); });
  if (gpus.size() < 2) {
    return not_applicable(
        std::move(result),
        known < 2 ? "the run has one GPU" : "fewer than two GPUs reported their utilization during the training");
  }
  std::vector<Histogram> histograms;
  Json all = Json::array();
  for (const GpuPoints& gpu : gpus) {
    histograms.push_back(histogram_of(gpu.values));
    Json one = describe(gpu);
    one["histogram"] = histograms.back();
    all.push_back(std::move(one));
    result.datapoints += static_cast<std::int64_t>(gpu.values.size());
  }
  std::int64_t pairs = 0;
  std::int64_t undecided = 0;
  Json unequal = Json::array();
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    for (std::size_t b = a + 1; b < gpus.size(); ++b) {
      ++pairs;
      if (distance_by_chance(histograms[a], histograms[b]) > threshold / 2) {
        ++undecided;
        continue;
      }
      const double distance = distance_between(histograms[a], histograms[b]);
      if (distance <= threshold) continue;
      ++result.triggered;
      if (unequal.size() < kMostListed) unequal.push_back({{"gpus", {a, b}}, {"distance", distance}});
    }
  }
  if (undecided == pairs) return not_applicable(std::move(result), "too few data points to distinguish GPUs by them");
  result.counts["pairs"] = pairs;
  result.counts["undecided"] = undecided;
  result.counts["alike"] = pairs - undecided - result.triggered;
  result.counts["triggered"] = result.triggered;
  result.details = {{"gpus", std::move(all)}, {"unequal", std::move(unequal)}};
  return result;
}

std::unique_ptr<Rule> make_load_balancing() {
  return std::make_unique<RuleOf<LoadBalancing>>();
}

}  // namespace dtrain::analysis::rules
