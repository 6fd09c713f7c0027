#include "measure/exposed.h"

#include <algorithm>

#include "read/json_fields.h"

namespace dtrain::analysis {

ExposedCommunication exposed_communication(const RunProfile& run, const WaitSummary& waits) {
  ExposedCommunication result;
  if (run.ranks.empty()) return result;
  for (const RankProfile& rank : run.ranks) {
    result.seconds += static_cast<double>(rank.phase_ns(profile::Phase::kAllreduceWait)) / 1e9;
    std::int64_t exchanges = 0;
    for (const StepLine& step : rank.steps) exchanges += step.exchanged ? 1 : 0;
    for (const WindowLine& window : rank.windows) add_to(exchanges, window.exchanged);
    result.exchanges = std::max(result.exchanges, exchanges);
  }
  result.seconds /= static_cast<double>(run.ranks.size());
  result.waiting_s = std::min(result.seconds, waits.skew_seconds);
  result.exchange_s = result.seconds - result.waiting_s;
  result.exchange_median_s = waits.exchange_median_s;
  return result;
}

}  // namespace dtrain::analysis
