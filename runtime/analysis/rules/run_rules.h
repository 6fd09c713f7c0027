// Makes the rules' results from a run's folder: the series that rules judge, and the results as text. Private to
// analysis.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/rules.h"
#include "dtrain/analysis/run_profile.h"
#include "read/text.h"
#include "rules/series.h"

namespace dtrain::analysis::rules {

// Returns the training steps of each rank, and the validations of ranks that had some. Their phases point into
// `profile`.
std::vector<StepSeries> step_series(const RunProfile& profile);
std::vector<HostSeries> host_series(const RunProfile& profile);
// Returns for each sample the percentage of its interval in which the busiest of the ranks computed: forward, backward,
// the optimizer, validation. Empty: no rank has recorded a step.
std::vector<std::optional<double>> computing_percent(const std::vector<const RankProfile*>& ranks,
                                                     const std::vector<SystemLine>& samples);
std::vector<LoaderSeries> loader_series(const RunProfile& profile);
std::vector<InitializationTime> initialization_times(const RunProfile& profile);
ModelFacts model_facts(const RunProfile& profile);

// --- the results as people read them on a terminal ---

// "3 steps, of 1,200 data points judged"
std::string triggered_text(const RuleResult& result);

// Writes the rules that triggered, with advice; then those that did not, and those that do not apply, with the reason.
void write_rules(TextWriter& out, const std::vector<RuleResult>& results);

}  // namespace dtrain::analysis::rules
