#include "measure/update_sharing.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "measure/rows.h"
#include "measure/statistics.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

const Json* strategy_of(const RunProfile& run) {
  const auto strategy = run.plan.find("strategy");
  return strategy != run.plan.end() && strategy->is_object() ? &*strategy : nullptr;
}

// The median optimizer step of these batches, of the rank for which it is longest; 0: there is none.
double longest_update_ns(const RunProfile& run, std::int64_t first_batch, std::int64_t last_batch) {
  double longest = 0;
  for (const RankProfile& rank : run.ranks) {
    std::vector<double> updates;
    for (const StepLine& step : rank.steps) {
      if (step.batch < first_batch || step.batch > last_batch || !step.exchanged) continue;
      updates.push_back(static_cast<double>(phase_of(step, profile::Phase::kOptimizerStep)));
    }
    longest = std::max(longest, median_low(std::move(updates)));
  }
  return longest;
}

}  // namespace

bool updates_one_copy(const RunProfile& run) {
  const Json* const strategy = strategy_of(run);
  return strategy && text(*strategy, "strategy") == "sharded" && strategy->value("one_copy", Json()) == Json(true);
}

std::optional<double> unshared_update_share(const RunProfile& run, const RunProfile& tried) {
  const Json* const strategy = strategy_of(tried);
  if (!updates_one_copy(run) || !strategy) return std::nullopt;
  const auto turns = strategy->find("turns");
  if (turns == strategy->end() || !turns->is_array()) return std::nullopt;
  std::vector<double> replicated_ns;
  for (const Json& turn : *turns) {
    if (!turn.is_object() || text(turn, "strategy") != "replicated") continue;
    const double update_ns = longest_update_ns(tried, integer(turn, "first_batch"), integer(turn, "last_batch"));
    if (update_ns > 0) replicated_ns.push_back(update_ns);
  }
  const double update_ns = longest_update_ns(run, 0, INT64_MAX);
  if (replicated_ns.empty() || update_ns <= 0) return std::nullopt;
  return std::min(1.0, median_low(std::move(replicated_ns)) / std::max(1, tried.world_size) / update_ns);
}

}  // namespace dtrain::analysis
