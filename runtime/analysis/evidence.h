// What was found out about a run once, for stragglers, predictions and findings alike. Refers to the RunProfile, which
// must outlive it. Any thread may read.
#pragma once

#include <algorithm>
#include <vector>

#include "contention.h"
#include "dtrain/analysis/run_profile.h"
#include "rows.h"
#include "waiting.h"

namespace dtrain::analysis {

struct Evidence {
  explicit Evidence(const RunProfile& profile)
      : run(profile), rows(profile), waits(compare_waits(rows)), contention(find_contention(profile)) {
    for (const RankProfile& rank : run.ranks) loop_s = std::max(loop_s, rank.loop_s().value_or(0));
  }
  const RunProfile& run;
  Rows rows;
  WaitSummary waits;
  std::vector<Contention> contention;  // as RunProfile::ranks
  double loop_s = 0;                   // of the slowest rank
};

}  // namespace dtrain::analysis
