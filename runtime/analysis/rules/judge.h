// Functions that rules share: they select the data points that count, and begin and complete results. Private to
// analysis.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rules/rule.h"
#include "rules/series.h"

namespace dtrain::analysis::rules {

// The samples of a host that a rule judges: from the end of the rule's patience to the end of the training.
struct Judged {
  std::span<const HostSample> samples;
  std::int64_t patience = 0, after_training = 0;  // left out before and after
};
Judged judged_samples(const HostSeries& host, std::int64_t patience);

// Returns a result with the rule's name, texts and unit, without anything about the run yet.
RuleResult begin_result(std::string name, std::string group, std::string unit, std::string description,
                        std::string recommendation);
RuleResult not_applicable(RuleResult result, std::string why);
// Adds the counts of `all` items that are judged one by one (all = not_known + fine + triggered), and the details of
// each. `of`: the plural of the items, which names both: "hosts".
RuleResult count_each(RuleResult result, const char* of, std::size_t all, std::int64_t not_known, Json details);

// The fuller memory of a sample: the host's, or that within the limit of the ranks' cgroup. The kernel kills processes
// if either is full. Empty: neither is known.
struct HostMemory {
  double free = 0, total = 0;  // bytes
  bool of_cgroup = false;
  double used_percent() const { return 100 * (1 - free / total); }
};
std::optional<HostMemory> memory_of(const Machine& machine, const HostSample& sample);

bool has_gpus(Hosts hosts);
inline constexpr const char* kNoGpu = "the run used no GPU";
inline constexpr const char* kNoSystemSample = "no system sample was taken during the training";

// One GPU of a run and its readings.
struct GpuPoints {
  const HostSeries* host = nullptr;
  std::size_t at = 0;  // in host->gpus
  std::vector<double> values;
};
using GpuMetric = std::optional<double> GpuReading::*;
// Returns the metric's values of every GPU in the judged samples, and adds `samples`, `patience` and `after_training`
// to `counts` (summed over hosts). A GPU without any value has an empty list.
std::vector<GpuPoints> gpu_points(Hosts hosts, std::int64_t patience, GpuMetric metric, Json& counts);

// Adds the numbers of omitted and of judged samples of a host to the counts of a rule.
void count_samples(Json& counts, const HostSeries& host, const Judged& judged);

// {"agent", "host", "gpu", "name"}
Json describe(const GpuPoints& gpu);

double percent(std::int64_t part, std::int64_t whole);

// --- windows of consecutive data points ---

// Returns consecutive windows from the first point on, without an incomplete last one.
std::vector<std::span<const double>> windows_of(std::span<const double> values, std::int64_t window);

// Returns quantile() of statistics.h and leaves the values as they are.
double quantile_of(std::span<const double> values, double share);

// Returns the reason for which a rule that judges windows has none.
std::string too_few_points(std::int64_t most, std::int64_t window, const char* of = "a GPU");

// Statistics over the steps of a series, including folded steps.
struct SeriesStatistics {
  std::int64_t steps = 0;
  double mean_s = 0, stddev_s = 0;  // of all steps (population); exact with folded steps too
  double min_s = 0, max_s = 0;      // exact
  double median_s = 0, mad_s = 0;   // median, and median of the absolute deviations from it
  double p50_s = 0, p95_s = 0, p99_s = 0;
};

SeriesStatistics statistics_of(const StepSeries& series);

// Returns the number of folded steps whose duration is above `threshold_s`.
std::int64_t folded_above(const StepSeries& series, double threshold_s);

// Returns the numbers of steps that last at most `threshold_s`, in each of `bins` equal parts between `from_s` and
// `to_s`. Steps beyond these count in the first or last part.
std::vector<std::int64_t> histogram_of(const StepSeries& series, double threshold_s, double from_s, double to_s,
                                       std::size_t bins);

}  // namespace dtrain::analysis::rules
