// What a host's samples amount to.
#pragma once

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

AgentSummary summarize_agent(const RunProfile& run, const AgentProfile& agent);

}  // namespace dtrain::analysis
