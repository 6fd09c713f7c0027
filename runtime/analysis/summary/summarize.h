// The summary's parts that have files of their own.
#pragma once

#include "dtrain/analysis/summary.h"
#include "measure/evidence.h"

namespace dtrain::analysis {

RunSummary summarize(const Evidence& evidence);
void add_collectives(const RunProfile& run, RunSummary& summary);

}  // namespace dtrain::analysis
