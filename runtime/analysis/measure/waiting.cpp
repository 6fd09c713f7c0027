#include "measure/waiting.h"

#include <algorithm>

#include "dtrain/base/clock.h"
#include "measure/statistics.h"

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

// Of its exchange nothing is known.
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
  double waited_s = 0;  // mean over ranks, in rows that are no windows
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

}  // namespace dtrain::analysis
