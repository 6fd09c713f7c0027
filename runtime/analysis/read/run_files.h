// Reads the files of a run's folder: its dumps, the counts of operators, and the other files for a summary. Any thread
// may call.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/profile/operator_counts.h"

namespace dtrain::analysis {

// Return the dumps in the folder profile/ of a run so far, ascending; none if the folder does not exist.
std::vector<std::pair<int, std::filesystem::path>> rank_dumps(const std::filesystem::path& folder);
std::vector<std::pair<std::string, std::filesystem::path>> agent_dumps(const std::filesystem::path& folder);  // by id

// Reads profile/operators-rank-NNNN.json without trust; ascending by rank. A file that cannot be read adds a line to
// `warnings`.
std::vector<profile::OperatorCounts> read_operator_counts(const std::filesystem::path& folder,
                                                          std::vector<std::string>& warnings);

// Adds the facts of plan.json, events.jsonl and metrics.jsonl; each may be missing.
void add_run_files(const RunProfile& run, RunSummary& summary);

}  // namespace dtrain::analysis
