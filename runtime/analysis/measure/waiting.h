// Which rank the others wait for. In a step that exchanges gradients no rank goes on before the last one arrives, and
// the last one waits least: its allreduce_wait is the exchange itself, and what the others wait beyond that is waiting
// for it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "measure/rows.h"

namespace dtrain::analysis {

struct WaitedFor {
  std::int64_t steps = 0;  // in which this rank came last
  double seconds = 0;      // how long the others waited for it, on average
  double exchange_s = 0;   // what these exchanges took
  // How much longer it took than the median of the others in the rows in which it came last, by phase.
  std::array<double, profile::kPhaseCount> later_s{};
};

struct WaitSummary {
  std::vector<WaitedFor> ranks;     // as in RunProfile
  std::int64_t compared_steps = 0;  // with an exchange, each one compared by itself
  double skew_seconds = 0;          // waiting for the last rank: mean over all ranks
  double exchange_seconds = 0;      // what the exchange itself took
  double exchange_median_s = 0;     // of one, of those compared one by one
  bool estimated = false;  // windows took part: their skew is at least what is left in their sums, and taken to
                           // have the same share in the waiting as in the steps compared one by one
};

// Rows without an exchange are left out; where all waited the same, no rank was waited for.
WaitSummary compare_waits(const Rows& rows);

}  // namespace dtrain::analysis
