// Makes the series that rules judge from a run's folder. Private to analysis.
#pragma once

#include <optional>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "rules/series.h"

namespace dtrain::analysis::rules {

// Training steps of each rank, and the validations of those that had some. Their phases point into `profile`.
std::vector<StepSeries> step_series(const RunProfile& profile);
std::vector<HostSeries> host_series(const RunProfile& profile);
// Of each sample the percentage of its interval in which the busiest of the ranks computed: forward, backward, the
// optimizer, validation. Empty where no rank has recorded a step.
std::vector<std::optional<double>> computing_percent(const std::vector<const RankProfile*>& ranks,
                                                     const std::vector<SystemLine>& samples);
std::vector<LoaderSeries> loader_series(const RunProfile& profile);
std::vector<InitializationTime> initialization_times(const RunProfile& profile);
ModelFacts model_facts(const RunProfile& profile);

}  // namespace dtrain::analysis::rules
