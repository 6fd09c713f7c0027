// A run as lists show it: `dtrain runs`, `dtrain export --json`, and the board. Any thread.
#pragma once

#include "dtrain/analysis/run_history.h"
#include "dtrain/base/clock.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::launcher {

// Agents write twice a second: a run that was quiet for so long, and has no process on this host, has none on any.
inline constexpr double kQuietS = 5;

// Returns true if the run is over, or nothing shows that a process of it is left on any host.
bool is_gone(const rank::RunFolder& folder);

// Returns the run as it is now.
analysis::ListedRun list_run(const rank::RunFolder& folder, const Clock& clock);

}  // namespace dtrain::launcher
