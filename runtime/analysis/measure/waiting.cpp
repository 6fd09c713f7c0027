#include "measure/waiting.h"

#include <algorithm>

#include "dtrain/base/clock.h"
#include "measure/rows.h"
#include "measure/statistics.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

void add_lateness(const Rows& rows, std::size_t row, std::size_t last, WaitedFor& into) {
  std::vector<double> others;
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    if (i == static_cast<std::size_t>(profile::Phase::kAllreduceWait)) continue;
    others.clear();
    for (std::size_t rank = 0; rank < rows.ranks(); ++rank) {
      if (rank != last) others.push_back(to_seconds(rows.at(row, rank).phases[i]));
    }
    into.later_s[i] += to_seconds(rows.at(row, last).phases[i]) - quantile(others, 0.5);
  }
}

// True if the row is a CUDA graph, whose exchange has no times.
bool is_graph(const Rows& rows, std::size_t row) {
  if (rows.rows()[row].window) return false;
  for (std::size_t rank = 0; rank < rows.ranks(); ++rank) {
    if (graph_of(rows.at(row, rank)) > 0) return true;
  }
  return false;
}

}  // namespace

WaitSummary compare_waits(const Rows& rows) {
  WaitSummary result;
  result.ranks.resize(rows.ranks());
  if (rows.ranks() < 2) return result;
  const auto count = static_cast<double>(rows.ranks());
  double waited_s = 0;  // mean over ranks, in rows that are not windows
  double window_waited_s = 0, window_least_s = 0;
  std::vector<double> exchanges_s;
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    const Row& row = rows.rows()[i];
    if (!row.exchanged || is_graph(rows, i)) continue;
    std::size_t last = 0;
    std::int64_t most = 0;
    double sum_s = 0;
    for (std::size_t rank = 0; rank < rows.ranks(); ++rank) {
      const std::int64_t wait = wait_of(rows.at(i, rank));
      if (wait < wait_of(rows.at(i, last))) last = rank;
      most = std::max(most, wait);
      sum_s += to_seconds(wait);
    }
    const std::int64_t least = wait_of(rows.at(i, last));
    const double beyond_s = sum_s - count * to_seconds(least);
    (row.window ? window_waited_s : waited_s) += sum_s / count;
    (row.window ? window_least_s : result.exchange_seconds) += to_seconds(least);
    if (!row.window) {
      ++result.compared_steps;
      exchanges_s.push_back(to_seconds(least));
    }
    if (most == least) continue;
    WaitedFor& waited_for = result.ranks[last];
    if (!row.window) ++waited_for.steps;
    waited_for.seconds += beyond_s / (count - 1);
    waited_for.exchange_s += to_seconds(least);
    add_lateness(rows, i, last, waited_for);
  }
  const double share = waited_s > 0 ? result.exchange_seconds / waited_s : 1;
  result.skew_seconds = waited_s - result.exchange_seconds;
  const double window_exchange_s = std::min(window_least_s, share * window_waited_s);
  result.exchange_seconds += window_exchange_s;
  result.skew_seconds += window_waited_s - window_exchange_s;
  result.estimated = window_waited_s > 0;
  result.exchange_median_s = median_low(std::move(exchanges_s));
  return result;
}

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
      // A window has only sums: if it contains a graph, most of its steps are graphs.
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
