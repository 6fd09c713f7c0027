// The parts of a live view as lines of text. Plain functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "dtrain/analysis/live.h"

namespace dtrain::analysis {

using ScreenLines = std::vector<std::string>;

// The run: how far it is, how fast, what its metrics are, what is wrong.
ScreenLines head_lines(const LiveView& view, const LiveTextOptions& options);
// A title and a line a rank, `room` lines at most (0: as many as it takes); less than a title and two lines is nothing.
ScreenLines rank_lines(const LiveView& view, const LiveTextOptions& options, int room);
// A title; of each host a line, its cores, its GPUs.
ScreenLines host_lines(const LiveView& view, const LiveTextOptions& options);

}  // namespace dtrain::analysis
