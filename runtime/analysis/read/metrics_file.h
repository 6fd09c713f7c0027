// Reads metrics.jsonl into curves, line after line. A file of a million lines takes seconds, so a line as dtrain writes
// it is read without a tree of its values.
#pragma once

#include <filesystem>

#include "dtrain/analysis/run_history.h"
#include "dtrain/profile/run_records.h"

namespace dtrain::analysis {

// Adds all lines to `reader`. A file that is not there has none.
profile::Damage read_metrics(const std::filesystem::path& run_dir, CurveReader& reader);

}  // namespace dtrain::analysis
