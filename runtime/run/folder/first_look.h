// Where the time of a run has gone so far, shown once it has trained for a while. One thread.
#pragma once

#include <string>

#include "dtrain/analysis/live.h"
#include "dtrain/base/clock.h"
#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// "so far      12,345 samples/s; computing 71%, exchange 15%, waiting 9%, loading 5%": means over the ranks, the
// largest share first. Empty if no rank has recorded a batch.
std::string first_look_text(const analysis::LiveView& view);

// That text for the run's folder as it is now, with the command that shows it continuously. Empty if the dumps hold no
// batch, for example while they are on other hosts. Never throws.
std::string first_look(const RunFolder& folder, const Clock& clock) noexcept;

}  // namespace dtrain::run
