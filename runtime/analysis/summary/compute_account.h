// How much a run computed, and what share of the hardware's limit that is.
#pragma once

#include <optional>

#include "dtrain/analysis/summary.h"
#include "measure/evidence.h"

namespace dtrain::analysis {

// `summary` has the run's totals. Empty: no operators were counted.
std::optional<ComputeAccount> compute_account(const Evidence& evidence, const RunSummary& summary);

}  // namespace dtrain::analysis
