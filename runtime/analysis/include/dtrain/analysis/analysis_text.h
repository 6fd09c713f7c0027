// An analysis as text for a terminal. Any thread may call.
#pragma once

#include <string>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/summary_text.h"

namespace dtrain::analysis {

// Findings, the waterfall, steps, stragglers, and the predictions for changes.
std::string render_analysis(const Analysis& analysis, const TextOptions& options);

// Only the predictions, each with its assumption.
std::string render_what_if(const Analysis& analysis, const TextOptions& options);

}  // namespace dtrain::analysis
