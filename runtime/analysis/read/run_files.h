// What the other files of a run's folder add to a summary: plan.json, events.jsonl, metrics.jsonl. Each may be missing.
#pragma once

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

void add_run_files(const RunProfile& run, RunSummary& summary);

}  // namespace dtrain::analysis
