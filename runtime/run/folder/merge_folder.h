// Merges what one host has written into its own folder of a run into the run's folder. Plain functions.
#pragma once

#include <filesystem>
#include <vector>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// Moves plain files, appends lines of events.jsonl, and takes over the keys of plan.json from the host of rank 0.
// Leaves out everything else (links, devices): here a link would lead to a file of this host. Returns what was left
// out, relative to `from`. SystemError or DataError: not all of it could be moved.
std::vector<std::filesystem::path> merge_folder(const RunFolder& from, const RunFolder& to);

}  // namespace dtrain::run
