// Which rank the others wait for. In a step that exchanges gradients no rank goes on before the last one arrives, and
// the last one waits least: its allreduce_wait is the exchange itself, and what the others wait beyond that is waiting
// for it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dtrain/analysis/run_profile.h"
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

// Exposed communication: what training threads spend in allreduce_wait, which computing does not hide. It has two
// parts: the exchange itself, and waiting for the rank that comes last. Every text, table and key takes them from here.
// A step that is a CUDA graph has no times of its parts: what its exchange exposes is not known and not in here.
struct ExposedCommunication {
  double seconds = 0;            // allreduce_wait of steps that are no graphs, mean over ranks: exchange_s + waiting_s
  double exchange_s = 0;         // of that, what the rank that came last had too
  double waiting_s = 0;          // the rest: waiting for the rank that came last
  double graphs_s = 0;           // steps that are CUDA graphs, mean over ranks
  double before_graphs_s = 0;    // in such steps, waiting for the other ranks' announcements
  std::int64_t exchanges = 0;    // of gradients, of the rank with most
  std::int64_t timed = 0;        // of them, those whose times are known: not in CUDA graphs
  double exchange_median_s = 0;  // of those recorded in full
  double exchange_mean_s() const { return timed > 0 ? exchange_s / static_cast<double>(timed) : 0; }
};

ExposedCommunication exposed_communication(const RunProfile& run, const WaitSummary& waits);

}  // namespace dtrain::analysis
