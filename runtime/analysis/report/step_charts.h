// Charts of the durations of steps: over time, and how they are distributed. Any thread may call.
#pragma once

#include "dtrain/base/json.h"
#include "report/input.h"

namespace dtrain::analysis::report {

// A line for each drawn rank, and all ranks together where there are several; null without steps.
Json step_series(const Input& input);
// Of each host, and (shown when it is chosen) of each drawn rank; null without steps.
Json step_histogram(const Input& input);

}  // namespace dtrain::analysis::report
