// Steps and collectives of a rank's dump as a trace has them, for runs of which no trace was taken. Where in a step its
// phases lay, a dump does not say.
#pragma once

#include "dtrain/analysis/run_profile.h"
#include "dtrain/profile/trace_log.h"

namespace dtrain::analysis {

profile::TraceLog log_of_dump(const RankProfile& rank);

}  // namespace dtrain::analysis
