// Statistics of a run's recent steps. Plain functions; any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "dtrain/analysis/live.h"
#include "live/feeds.h"

namespace dtrain::analysis {

// Waits of the ranks that have steps, over the steps that all of them have.
struct RecentWaits {
  struct Rank {
    double exchange = 1;  // the exchange's own share of the rank's waiting
    std::int64_t came_last = 0;
  };
  std::map<int, Rank> ranks;
  std::int64_t compared_steps = 0;
};
RecentWaits recent_waits(const std::vector<const RankFeed*>& ranks);

// Returns the recent steps of a rank; empty: no step has ended. `now_ns`: the time on the clock of the rank's host.
std::optional<RecentSteps> recent_steps(const RankFeed& rank, const RecentWaits& waits, std::int64_t now_ns);

}  // namespace dtrain::analysis
