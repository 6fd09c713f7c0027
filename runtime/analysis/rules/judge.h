// What rules share: which data points count, and how a result is begun and completed. Private to analysis.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rules/rule.h"
#include "rules/series.h"

namespace dtrain::analysis::rules {

// The samples of a host that a rule judges: those from the end of its patience to the end of the training.
struct Judged {
  std::span<const HostSample> samples;
  std::int64_t patience = 0, after_training = 0;  // left out before and after
};
Judged judged_samples(const HostSeries& host, std::int64_t patience);

// A result with the rule's name, texts and unit, without anything about the run yet.
RuleResult begin_result(std::string name, std::string group, std::string unit, std::string description,
                        std::string recommendation);
RuleResult not_applicable(RuleResult result, std::string why);
// Adds the counts of what is judged one by one, `all` of it (all = not_known + fine + triggered), and what there is to
// say of each. `of`: its plural, the name of both: "hosts".
RuleResult count_each(RuleResult result, const char* of, std::size_t all, std::int64_t not_known, Json details);

// The memory that is fuller in a sample: the host's, or what the limit of the ranks' cgroup leaves. The kernel kills
// where either is full. Empty: neither is known.
struct HostMemory {
  double free = 0, total = 0;  // bytes
  bool of_cgroup = false;
  double used_percent() const { return 100 * (1 - free / total); }
};
std::optional<HostMemory> memory_of(const Machine& machine, const HostSample& sample);

bool has_gpus(Hosts hosts);
inline constexpr const char* kNoGpu = "the run used no GPU";
inline constexpr const char* kNoSystemSample = "no system sample was taken during the training";

// One GPU of a run and what was read of it.
struct GpuPoints {
  const HostSeries* host = nullptr;
  std::size_t at = 0;  // in host->gpus
  std::vector<double> values;
};
using GpuMetric = std::optional<double> GpuReading::*;
// Of every GPU the metric's values in the judged samples; `samples`, `patience` and `after_training` are added to
// `counts` (summed over hosts). A GPU without any value has an empty list.
std::vector<GpuPoints> gpu_points(Hosts hosts, std::int64_t patience, GpuMetric metric, Json& counts);

// Adds what was left out of a host's samples, and what was not, to the counts of a rule.
void count_samples(Json& counts, const HostSeries& host, const Judged& judged);

// {"agent", "host", "gpu", "name"}
Json describe(const GpuPoints& gpu);

double percent(std::int64_t part, std::int64_t whole);

// --- windows of data points: so many of them in a row ---

// One window after the other from the first point on; what is left at the end is no window.
std::vector<std::span<const double>> windows_of(std::span<const double> values, std::int64_t window);

// statistics.h's, of values that stay as they are.
double quantile_of(std::span<const double> values, double share);

// Why a rule that judges windows has none.
std::string too_few_points(std::int64_t most, std::int64_t window, const char* of = "a GPU");

// Statistics over the steps of a series, those that are folded into distributions included.
struct SeriesStatistics {
  std::int64_t steps = 0;
  double mean_s = 0, stddev_s = 0;  // of all steps (population); exact with folded steps too
  double min_s = 0, max_s = 0;      // exact
  double median_s = 0, mad_s = 0;   // median, and median of the absolute deviations from it
  double p50_s = 0, p95_s = 0, p99_s = 0;
};

SeriesStatistics statistics_of(const StepSeries& series);

// Steps whose duration is above `threshold_s`, of those that are folded.
std::int64_t folded_above(const StepSeries& series, double threshold_s);

// How many steps last at most `threshold_s` and fall into each of `bins` equal parts between `from_s` and `to_s`; what
// lies beyond counts in the first or last.
std::vector<std::int64_t> histogram_of(const StepSeries& series, double threshold_s, double from_s, double to_s,
                                       std::size_t bins);

}  // namespace dtrain::analysis::rules
