// The differences between the plans of two runs: world, batch, settings, model, versions, hosts. Plain functions.
#pragma once

#include <string>
#include <vector>

#include "dtrain/analysis/diff.h"
#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis::diff {

// What makes their steps different work first, parameters of rules last.
std::vector<DiffEntry> plan_differences(const RunProfile& a, const RunProfile& b);

// Of these, what makes the steps of one do other work than the steps of the other: "world_size 2 and 4"; empty:
// nothing.
std::string other_work(const std::vector<DiffEntry>& differences);

}  // namespace dtrain::analysis::diff
