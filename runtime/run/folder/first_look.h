// What a run shows of itself once it has trained for a while: where its time goes so far. One thread.
#pragma once

#include <string>

#include "dtrain/analysis/live.h"
#include "dtrain/base/clock.h"
#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// "so far      12,345 samples/s; computing 71%, exchange 15%, waiting 9%, loading 5%", the mean of the ranks, the
// largest share first; empty where no rank has recorded a step.
std::string first_look_text(const analysis::LiveView& view);

// Of the run's folder as it is now, with the command that goes on showing it. Empty where its dumps tell nothing, as
// while they are on other hosts; throws nothing.
std::string first_look(const RunFolder& folder, const Clock& clock) noexcept;

}  // namespace dtrain::run
