// The facts about a run that stragglers, predictions and findings share, computed once. Refers to the RunProfile, which
// must outlive it. Any thread may read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"
#include "measure/contention.h"
#include "measure/roofline.h"
#include "measure/rows.h"
#include "measure/waiting.h"

namespace dtrain::analysis {

struct Evidence {
  explicit Evidence(const RunProfile& profile)
      : run(profile),
        rows(profile),
        waits(compare_waits(rows)),
        exposed(exposed_communication(profile, waits)),
        contention(find_contention(profile)),
        roofline(make_roofline(profile)) {
    for (const RankProfile& rank : run.ranks) {
      loop_s = std::max({loop_s, rank.loop_s().value_or(0), static_cast<double>(rank.wall_ns()) / 1e9});
    }
  }
  const RunProfile& run;
  Rows rows;
  WaitSummary waits;
  ExposedCommunication exposed;
  std::vector<Contention> contention;  // as RunProfile::ranks
  Roofline roofline;
  double loop_s = 0;  // of the slowest rank: what shares of the loop are of
};

std::size_t count_hosts(const RunProfile& run);
// True if all ranks are on one host, so there is no link between them.
inline bool on_one_host(const RunProfile& run) {
  return count_hosts(run) < 2;
}

// Results that are computed from the evidence.
Stragglers find_stragglers(const Evidence& evidence);
// Makes the waterfall from every batch of every rank, and from how long ranks waited for each other.
Waterfall make_waterfall(const Evidence& evidence);
RunSummary summarize(const Evidence& evidence);

}  // namespace dtrain::analysis
