#include "live/recent.h"

#include <algorithm>

#include "dtrain/base/clock.h"
#include "measure/rows.h"
#include "measure/statistics.h"
#include "measure/waiting.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

// A rank counts as being within a step as long as no recent step took much longer.
constexpr std::int64_t kLatestStepNs = 1'000'000'000;

Activity activity_of(Phase phase) {
  switch (phase) {
    case Phase::kDataloaderNext:
    case Phase::kToDevice:
      return Activity::kLoading;
    case Phase::kTrainBatch:
    case Phase::kForward:
    case Phase::kBackward:
    case Phase::kGraph:
      return Activity::kComputing;
    case Phase::kAllreduceWait:
      return Activity::kWaiting;
    case Phase::kOptimizerStep:
    case Phase::kStepLrSchedulers:
      return Activity::kOptimizer;
    default:
      return Activity::kOther;
  }
}

// Sums over steps and windows.
struct Sums {
  profile::PhaseTimes phases{};  // exclusive
  std::int64_t wall_ns = 0, samples = 0, steps = 0;
  std::int64_t first_batch = INT64_MAX, last_batch = 0;
  std::int64_t begin_ns = INT64_MAX, end_ns = 0;
  std::int64_t longest_ns = 0;

  template <typename Line>
  void add(const Line& line, std::int64_t count, std::int64_t first, std::int64_t last, std::int64_t end,
           std::int64_t longest) {
    for (std::size_t i = 0; i < phases.size(); ++i) add_to(phases[i], line.phases[i]);
    add_to(wall_ns, line.wall_ns);
    add_to(samples, line.samples);
    add_to(steps, count);
    first_batch = std::min(first_batch, first);
    last_batch = std::max(last_batch, last);
    begin_ns = std::min(begin_ns, line.start_ns);
    end_ns = std::max(end_ns, end);
    longest_ns = std::max(longest_ns, longest);
  }
};

void add_shares(const Sums& sums, double exchange, RecentSteps& recent) {
  if (sums.wall_ns <= 0) return;
  const auto wall = static_cast<double>(sums.wall_ns);
  const auto share = [&](Activity activity) -> double& { return recent.shares[static_cast<std::size_t>(activity)]; };
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    recent.phases[i] = static_cast<double>(sums.phases[i]) / wall;
    share(activity_of(static_cast<Phase>(i))) += recent.phases[i];
  }
  for (const Phase part : {Phase::kForward, Phase::kBackward}) {
    recent.phases[static_cast<std::size_t>(Phase::kTrainBatch)] += recent.phases[static_cast<std::size_t>(part)];
  }
  share(Activity::kExchange) = exchange * share(Activity::kWaiting);
  share(Activity::kWaiting) -= share(Activity::kExchange);
}

}  // namespace

RecentWaits recent_waits(const std::vector<const RankFeed*>& ranks) {
  RunProfile run;
  for (const RankFeed* rank : ranks) {
    RankProfile& copy = run.ranks.emplace_back();
    copy.rank = rank->profile().rank;
    copy.steps = rank->profile().steps;
    copy.windows = rank->profile().windows;
  }
  const Rows rows(run);
  const WaitSummary summary = compare_waits(rows);
  RecentWaits result;
  result.compared_steps = summary.compared_steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    double waited_s = 0;
    for (std::size_t i = 0; i < rows.rows().size(); ++i) {
      if (rows.rows()[i].exchanged) waited_s += to_seconds(wait_of(rows.at(i, r)));
    }
    RecentWaits::Rank& rank = result.ranks[run.ranks[r].rank];
    rank.came_last = summary.ranks[r].steps;
    if (waited_s > 0 && ranks.size() > 1) rank.exchange = std::min(1.0, summary.exchange_seconds / waited_s);
  }
  return result;
}

std::optional<RecentSteps> recent_steps(const RankFeed& rank, const RecentWaits& waits, std::int64_t now_ns) {
  const RankProfile& profile = rank.profile();
  Sums sums;
  Distribution walls;
  for (const StepLine& step : profile.steps) {
    sums.add(step, 1, step.batch, step.batch, plus(step.start_ns, step.wall_ns), step.wall_ns);
    walls.add(step.wall_ns);
  }
  for (std::size_t i = 0; i < profile.windows.size(); ++i) {
    const WindowLine& window = profile.windows[i];
    sums.add(window, window.steps, window.first_batch, window.last_batch, window.end_ns, window.wall_max_ns);
    walls.add(rank.window_walls()[i]);
  }
  if (sums.steps <= 0) return std::nullopt;
  RecentSteps recent;
  recent.steps = sums.steps;
  recent.p50_s = walls.quantile_s(0.5);
  recent.p99_s = walls.quantile_s(0.99);
  // Some lines may have been replaced before they were read, so steps are counted by their numbers.
  const bool late = minus(now_ns, sums.end_ns) > std::max(kLatestStepNs, 2 * sums.longest_ns);
  const double span_s = to_seconds(minus(late ? now_ns : sums.end_ns, sums.begin_ns));
  if (span_s > 0) {
    recent.batches_per_s = static_cast<double>(sums.last_batch - sums.first_batch + 1) / span_s;
    recent.samples_per_s = recent.batches_per_s * static_cast<double>(sums.samples) / static_cast<double>(sums.steps);
  }
  const auto waited = waits.ranks.find(profile.rank);
  add_shares(sums, waited == waits.ranks.end() ? 1 : waited->second.exchange, recent);
  if (waited != waits.ranks.end()) recent.came_last = waited->second.came_last;
  return recent;
}

}  // namespace dtrain::analysis
