// How the waterfall is made: from every step of every rank, and from how long they waited for each other.
#pragma once

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/waterfall.h"
#include "waiting.h"

namespace dtrain::analysis {

Waterfall make_waterfall(const RunProfile& run, const WaitSummary& waits);

}  // namespace dtrain::analysis
