// Exposed communication: what training threads spend in allreduce_wait, which computing does not hide. It has two
// parts: the exchange itself, and waiting for the rank that comes last. Every text, table and key takes them from here.
// A step that is a CUDA graph has no times of its parts: what its exchange exposes is not known and not in here.
#pragma once

#include <cstdint>

#include "dtrain/analysis/run_profile.h"
#include "measure/waiting.h"

namespace dtrain::analysis {

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
