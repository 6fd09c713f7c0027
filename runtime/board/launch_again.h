// Runs that the board launches: again, with changed keys, or on from where they ended.
#pragma once

#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::board {

enum class Launch { kAgain, kContinue };

// Launches the run's experiment as a new run beside it, or the run itself on, in the background, with the keys in
// `request` ({"set": ["KEY=VALUE", …]}) changed. Returns {"launched": whether it was, "text": what it printed, or why
// not}.
Json launch_run(const rank::RunFolder& folder, Launch how, const Json& request);

}  // namespace dtrain::board
