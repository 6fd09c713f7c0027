// What makes the numbers of a run less than complete.
#pragma once

#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

// Adds to the run's warnings: dumps that are missing, were not ended, or lack records.
void warn_about_dumps(RunProfile& run);

}  // namespace dtrain::analysis
