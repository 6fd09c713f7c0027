// Tries divisions of this machine's cores: a short run of the experiment with each. One thread; takes some seconds for
// each division.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtrain/run/launch.h"
#include "plan/division.h"

namespace dtrain::run {

// Fills in step_ms and steps, or failure, of each trial. The runs are in a folder of their own, which is removed, and
// take their turn in the queue. `say` gets lines for the screen. False: a signal has stopped it, and the run in
// progress has ended. ConfigError or Error if all fail: that of the first.
bool try_divisions(std::vector<DivisionTrial>& trials, const LaunchRequest& request,
                   const std::function<void(const std::string&)>& say);

}  // namespace dtrain::run
