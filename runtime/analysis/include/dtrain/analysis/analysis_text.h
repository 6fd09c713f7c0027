// An analysis as people read it on a terminal. Any thread may call.
#pragma once

#include <string>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/summary_text.h"

namespace dtrain::analysis {

// Findings, the waterfall, steps, stragglers, and what changes would bring.
std::string render_analysis(const Analysis& analysis, const TextOptions& options);

// The predictions alone, with what each rests on.
std::string render_what_if(const Analysis& analysis, const TextOptions& options);

}  // namespace dtrain::analysis
