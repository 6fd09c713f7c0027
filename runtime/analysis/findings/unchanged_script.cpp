// What the loop of an unchanged script would gain on dtrain's engine, predicted from what its own loop has recorded.
#include <algorithm>
#include <iterator>
#include <optional>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "measure/predictor.h"
#include "measure/roofline.h"
#include "measure/system_metrics.h"
#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

using profile::Phase;

// The engine's update passes over the memory once, and comes this near to its limit.
constexpr double kUpdateOfLimit = 0.8;

struct Update {
  const char* kind;
  double passes;  // over the parameters: reads and writes of parameters, gradients and state
};
constexpr Update kUpdates[] = {{"SGD", 3}, {"Adam", 7}, {"AdamW", 7}};

double mean_of_step_s(const RunProfile& run, Phase phase) {
  double seconds = 0, steps = 0;
  for (const RankProfile& rank : run.ranks) {
    seconds += static_cast<double>(rank.phase_ns(phase)) / 1e9;
    steps += static_cast<double>(rank.step_count());
  }
  return steps > 0 ? seconds / steps : 0;
}

// Returns the seconds of a step's update on the engine; empty: the optimizer is another one, or a fact is missing.
std::optional<double> update_of_engine_s(const RunProfile& run) {
  const Json& model = object_at(run.plan, "model");
  const std::string kind = text(object_at(run.plan, "optimizer"), "kind");
  const auto update = std::ranges::find(kUpdates, kind, &Update::kind);
  const double bytes = 4 * number(model, "parameters");
  if (update == std::end(kUpdates) || text(model, "dtype") != "float32" || bytes <= 0 || ranks_have_gpus(run))
    return {};
  const LimitsOfRanks limits(run.plan, "cpu");
  double slowest_s = 0;
  for (const RankProfile& rank : run.ranks) {
    const auto of_rank = limits.of(rank.rank, rank.host);
    if (!of_rank || !of_rank->memory_gb_s) return {};
    slowest_s = std::max(slowest_s, update->passes * bytes / (*of_rank->memory_gb_s * kGiga * kUpdateOfLimit));
  }
  return slowest_s;
}

}  // namespace

double hidden_by_engine_s(const Evidence& evidence) {
  if (!evidence.run.is_of_unchanged_script()) return 0;
  const auto exchange = fit_exchange_cost(evidence);
  if (!exchange || exchange->buckets < 2) return 0;
  const double last_s = exchange->last_s * exchange->last_exposed_share;
  const double of_step_s =
      std::clamp(exchange->exposed_s - last_s, 0.0, mean_of_step_s(evidence.run, Phase::kBackward));
  const double steps = static_cast<double>(evidence.run.ranks.front().step_count());
  return std::min(of_step_s * steps, evidence.exposed.exchange_s);
}

std::vector<Finding> find_engine(const Run& run) {
  const Evidence& evidence = run.evidence;
  if (!evidence.run.is_of_unchanged_script()) return {};
  const double hidden_s = hidden_by_engine_s(evidence);
  const double update_s = mean_of_step_s(evidence.run, Phase::kOptimizerStep);
  const auto engines_s = update_of_engine_s(evidence.run);
  const double steps = static_cast<double>(evidence.run.ranks.front().step_count());
  const double saved_s = engines_s ? std::max(0.0, update_s - *engines_s) * steps : 0;
  const double seconds = hidden_s + saved_s;
  if (seconds <= 0) return {};
  std::string why;
  if (hidden_s > 0) {
    why = fmt::format("{} of the exchange would run behind the backward pass: all but its last bucket",
                      seconds_text(hidden_s));
  }
  if (saved_s > 0) {
    why += fmt::format("{}an update would take {} instead of {}: one pass over the memory at {} of its speed",
                       why.empty() ? "" : "; ", seconds_text(*engines_s), seconds_text(update_s),
                       format_percent(kUpdateOfLimit));
  }
  return {
      {.title = fmt::format("this loop on dtrain's engine would take {} instead of {} (predicted)",
                            seconds_text(evidence.loop_s - seconds), seconds_text(evidence.loop_s)),
       .evidence = why,
       .advice =
           "three lines in place of init_process_group(), DistributedDataParallel and DistributedSampler: `import "
           "dtrain`, `session = dtrain.init()`, `model, optimizer, loader = session.wrap(model, optimizer, loader)`",
       .seconds = seconds}};
}

}  // namespace dtrain::analysis::findings
