// Steps and collectives of a rank's dump in the form of a trace, for runs of which no trace was taken. A dump does not
// record where in a step its phases lay.
#pragma once

#include "dtrain/analysis/run_profile.h"
#include "dtrain/profile/trace_log.h"

namespace dtrain::analysis {

profile::TraceLog log_of_dump(const RankProfile& rank);

}  // namespace dtrain::analysis
