#include "measure/exposed.h"

#include <algorithm>

#include "dtrain/base/clock.h"
#include "measure/rows.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

ExposedCommunication exposed_communication(const RunProfile& run, const WaitSummary& waits) {
  ExposedCommunication result;
  if (run.ranks.empty()) return result;
  for (const RankProfile& rank : run.ranks) {
    std::int64_t timed_ns = 0;  // allreduce_wait outside of graphs
    result.graphs_s += to_seconds(rank.phase_ns(profile::Phase::kGraph));
    std::int64_t exchanges = 0;
    std::int64_t timed = 0;
    for (const StepLine& step : rank.steps) {
      exchanges += step.exchanged ? 1 : 0;
      if (graph_of(step) > 0) continue;
      timed += step.exchanged ? 1 : 0;
      add_to(timed_ns, phase_of(step, profile::Phase::kAllreduceWait));
    }
    for (const WindowLine& window : rank.windows) {
      add_to(exchanges, window.exchanged);
      // A window has sums alone: with a graph in it, most of its steps are graphs.
      if (window.phases[static_cast<std::size_t>(profile::Phase::kGraph)] > 0) continue;
      add_to(timed, window.exchanged);
      add_to(timed_ns, window.phases[static_cast<std::size_t>(profile::Phase::kAllreduceWait)]);
    }
    result.seconds += to_seconds(timed_ns);
    result.before_graphs_s += to_seconds(rank.phase_ns(profile::Phase::kAllreduceWait) - timed_ns);
    result.exchanges = std::max(result.exchanges, exchanges);
    result.timed = std::max(result.timed, timed);
  }
  result.seconds /= static_cast<double>(run.ranks.size());
  result.graphs_s /= static_cast<double>(run.ranks.size());
  result.before_graphs_s /= static_cast<double>(run.ranks.size());
  result.waiting_s = std::min(result.seconds, waits.skew_seconds);
  result.exchange_s = result.seconds - result.waiting_s;
  result.exchange_median_s = waits.exchange_median_s;
  return result;
}

}  // namespace dtrain::analysis
