// What the recent steps of a run amount to. Plain functions; any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "dtrain/analysis/live.h"
#include "live/feeds.h"

namespace dtrain::analysis {

// Of the ranks that have steps, in those that all of them have.
struct RecentWaits {
  struct Rank {
    double exchange = 1;  // of its waiting, what the exchange itself took
    std::int64_t came_last = 0;
  };
  std::map<int, Rank> ranks;
  std::int64_t compared_steps = 0;
};
RecentWaits recent_waits(const std::vector<const RankFeed*>& ranks);

// `now_ns`: on the clock of the rank's host. Nothing where no step has ended.
std::optional<RecentSteps> recent_steps(const RankFeed& rank, const RecentWaits& waits, std::int64_t now_ns);

}  // namespace dtrain::analysis
