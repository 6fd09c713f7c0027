// The rank for which the others wait. In a step that exchanges gradients, no rank continues before the last one
// arrives, and the last one waits least: its allreduce_wait is the exchange itself, and the others' additional wait is
// waiting for that rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "measure/rows.h"

namespace dtrain::analysis {

struct WaitedFor {
  std::int64_t steps = 0;  // steps in which this rank came last
  double seconds = 0;      // the others' wait for it, on average
  double exchange_s = 0;   // duration of these exchanges
  // The rank's delay against the median of the others in the rows in which it came last, by phase.
  std::array<double, profile::kPhaseCount> later_s{};
};

struct WaitSummary {
  std::vector<WaitedFor> ranks;     // as in RunProfile
  std::int64_t compared_steps = 0;  // steps with an exchange that are compared one by one
  double skew_seconds = 0;          // waiting for the last rank: mean over all ranks
  double exchange_seconds = 0;      // the exchange itself
  double exchange_median_s = 0;     // of an exchange that is compared by itself
  // True: windows are included. Their skew is at least the rest of their sums, and is assumed to have the same share of
  // the waiting as in the steps that are compared one by one.
  bool estimated = false;
};

// Leaves out rows without an exchange. If all ranks waited equally long in a row, no rank was waited for.
WaitSummary compare_waits(const Rows& rows);

// Exposed communication: the time of training threads in allreduce_wait, which computing does not hide. It has two
// parts: the exchange itself, and waiting for the rank that comes last. Every text, table and key takes them from here.
// A step that is a CUDA graph has no times of its parts, so its exposed exchange is not known and not included.
struct ExposedCommunication {
  double seconds = 0;            // allreduce_wait of steps that are no graphs, mean over ranks: exchange_s + waiting_s
  double exchange_s = 0;         // the part that the rank that came last had too
  double waiting_s = 0;          // the rest: waiting for the rank that came last
  double graphs_s = 0;           // steps that are CUDA graphs, mean over ranks
  double before_graphs_s = 0;    // in such steps, waiting for the other ranks' announcements
  std::int64_t exchanges = 0;    // of gradients, of the rank with most
  std::int64_t timed = 0;        // exchanges with known times: not in CUDA graphs
  double exchange_median_s = 0;  // of the exchanges recorded in full
  double exchange_mean_s() const { return timed > 0 ? exchange_s / static_cast<double>(timed) : 0; }
};

ExposedCommunication exposed_communication(const RunProfile& run, const WaitSummary& waits);

}  // namespace dtrain::analysis
