// Puts what one host has written into its own folder of a run into the run's. Plain functions.
#pragma once

#include <filesystem>
#include <vector>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// Plain files move to where they belong; lines of events.jsonl are added; of plan.json those keys that `to` lacks or
// that its first rank has changed. Whatever else the host has put there (a link, a device) is left out: a link would
// mean a file of this host here. Returns what was left out, relative to `from`. SystemError or DataError: not all of it
// could be moved.
std::vector<std::filesystem::path> merge_folder(const RunFolder& from, const RunFolder& to);

}  // namespace dtrain::run
