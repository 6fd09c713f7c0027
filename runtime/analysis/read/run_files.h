// The files of a run's folder: which dumps there are, the counts of operators, and what the others add to a summary.
// Any thread may call.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/profile/operator_counts.h"

namespace dtrain::analysis {

// The dumps that a run has so far, of its folder profile/, ascending; a folder that is not there has none.
std::vector<std::pair<int, std::filesystem::path>> rank_dumps(const std::filesystem::path& folder);
std::vector<std::pair<std::string, std::filesystem::path>> agent_dumps(const std::filesystem::path& folder);  // by id

// profile/operators-rank-NNNN.json, read without trust; ascending by rank. What cannot be read is a line of
// `warnings`.
std::vector<profile::OperatorCounts> read_operator_counts(const std::filesystem::path& folder,
                                                          std::vector<std::string>& warnings);

// What plan.json, events.jsonl and metrics.jsonl say; each may be missing.
void add_run_files(const RunProfile& run, RunSummary& summary);

}  // namespace dtrain::analysis
