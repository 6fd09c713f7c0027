// What the other files of a run's folder add to a summary: plan.json, events.jsonl, metrics.jsonl. Each may be missing.
#pragma once

#include <filesystem>

#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

void add_run_files(const std::filesystem::path& run_dir, RunSummary& summary);

}  // namespace dtrain::analysis
