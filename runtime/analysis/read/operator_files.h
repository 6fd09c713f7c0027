// profile/operators-rank-NNNN.json, read without trust.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/profile/operator_counts.h"

namespace dtrain::analysis {

// Of a run's folder `profile`, ascending by rank. What cannot be read is a line of `warnings`.
std::vector<profile::OperatorCounts> read_operator_counts(const std::filesystem::path& folder,
                                                          std::vector<std::string>& warnings);

}  // namespace dtrain::analysis
