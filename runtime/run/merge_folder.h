// Puts what one host has written into its own folder of a run into the run's. Plain functions.
#pragma once

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// Files move to where they belong; lines of events.jsonl are added; of plan.json those keys that `to` lacks or that its
// first rank has changed.
void merge_folder(const RunFolder& from, const RunFolder& to);

}  // namespace dtrain::run
