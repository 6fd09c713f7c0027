// What rules share: which data points count, and how a result is begun and completed. Private to analysis.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rules/rule.h"

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

}  // namespace dtrain::analysis::rules
