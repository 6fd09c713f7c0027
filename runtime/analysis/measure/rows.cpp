#include "measure/rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "dtrain/base/clock.h"

namespace dtrain::analysis {
namespace {

using Range = std::pair<std::int64_t, std::int64_t>;  // first and last batch of a window

void add_step(StepLine& sum, const StepLine& step) {
  if (sum.wall_ns == 0) sum.start_ns = step.start_ns;
  sum.batch = std::max(sum.batch, step.batch);
  add_to(sum.wall_ns, step.wall_ns);
  add_fields<profile::StepCounts>(sum, step);
  for (std::size_t i = 0; i < sum.phases.size(); ++i) add_to(sum.phases[i], step.phases[i]);
}

void add_window(StepLine& sum, const WindowLine& window) {
  sum.batch = window.last_batch;
  sum.start_ns = window.start_ns;
  sum.exchanged |= window.exchanged > 0;
  add_to(sum.wall_ns, window.wall_ns);
  add_fields<profile::StepCounts>(sum, window);
  for (std::size_t i = 0; i < sum.phases.size(); ++i) add_to(sum.phases[i], window.phases[i]);
}

std::set<Range> window_ranges(const RunProfile& run) {
  std::set<Range> ranges;
  for (const RankProfile& rank : run.ranks) {
    for (const WindowLine& window : rank.windows) ranges.emplace(window.first_batch, window.last_batch);
  }
  return ranges;
}

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

class Rows::Builder {
 public:
  Builder(const RunProfile& run, Rows& rows) : run_(run), rows_(rows), ranges_(window_ranges(run)) {
    for (const Range& range : ranges_) windows_[range] = WindowSums{std::vector<StepLine>(run.ranks.size()), {}};
    for (auto& [range, sums] : windows_) sums.steps.resize(run.ranks.size());
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
      for (const WindowLine& window : run.ranks[r].windows) {
        WindowSums& sums = windows_[{window.first_batch, window.last_batch}];
        add_window(sums.cells[r], window);
        add_to(sums.steps[r], window.steps);
      }
    }
  }

  void build() {
    const std::size_t count = run_.ranks.size();
    std::vector<std::size_t> at(count, 0);
    std::vector<const StepLine*> lines(count);
    for (;;) {
      std::int64_t batch = INT64_MAX;
      for (std::size_t r = 0; r < count; ++r) {
        const auto& steps = run_.ranks[r].steps;
        if (at[r] < steps.size()) batch = std::min(batch, steps[at[r]].batch);
      }
      if (batch == INT64_MAX) break;
      bool all = true;
      for (std::size_t r = 0; r < count; ++r) {
        const auto& steps = run_.ranks[r].steps;
        const bool here = at[r] < steps.size() && steps[at[r]].batch == batch;
        lines[r] = here ? &steps[at[r]] : nullptr;
        all &= here;
        while (at[r] < steps.size() && steps[at[r]].batch == batch) ++at[r];  // a batch done twice counts once
      }
      if (all) {
        add_common(batch, lines);
      } else {
        add_to_window(batch, lines);
      }
    }
    flush();
    add_windows();
    sort();
  }

 private:
  struct WindowSums {
    std::vector<StepLine> cells;
    std::vector<std::int64_t> steps;
  };

  void add_common(std::int64_t batch, const std::vector<const StepLine*>& lines) {
    if (!pending_.empty() && batch != last_ + 1) flush();
    last_ = batch;
    const bool exchanged = std::ranges::all_of(lines, [](const StepLine* line) { return line->exchanged; });
    if (exchanged && pending_.empty()) {
      rows_.rows_.push_back({batch, batch, 1, true, false});
      rows_.cells_.insert(rows_.cells_.end(), lines.begin(), lines.end());
      return;
    }
    if (pending_.empty()) {
      first_ = batch;
      pending_.resize(lines.size());
    }
    for (std::size_t r = 0; r < lines.size(); ++r) add_step(pending_[r], *lines[r]);
    if (exchanged) {
      for (StepLine& line : pending_) line.exchanged = true;
      flush();
    }
  }

  void flush() {
    if (pending_.empty()) return;
    add_row({first_, last_, last_ - first_ + 1, pending_.front().exchanged != 0, false}, pending_);
    pending_.clear();
  }

  void add_row(const Row& row, const std::vector<StepLine>& cells) {
    rows_.rows_.push_back(row);
    for (const StepLine& cell : cells) rows_.cells_.push_back(&rows_.sums_.emplace_back(cell));
  }

  // Adds a step that only some ranks recorded to the window into which the other ranks folded it.
  void add_to_window(std::int64_t batch, const std::vector<const StepLine*>& lines) {
    auto range = ranges_.upper_bound({batch, INT64_MAX});
    if (range == ranges_.begin() || (--range)->second < batch) return;
    WindowSums& sums = windows_[*range];
    for (std::size_t r = 0; r < lines.size(); ++r) {
      if (lines[r] == nullptr) continue;
      add_step(sums.cells[r], *lines[r]);
      ++sums.steps[r];
    }
  }

  void add_windows() {
    for (const auto& [range, sums] : windows_) {
      const auto [fewest, most] = std::minmax_element(sums.steps.begin(), sums.steps.end());
      if (*fewest <= 0 || *fewest != *most) continue;  // a rank's window is missing
      add_row({range.first, range.second, *most, sums.cells.front().exchanged != 0, true}, sums.cells);
    }
  }

  void sort() {
    const std::size_t count = rows_.ranks_;
    std::vector<std::size_t> order(rows_.rows_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return rows_.rows_[i].first_batch; });
    std::vector<Row> rows;
    std::vector<const StepLine*> cells;
    cells.reserve(rows_.cells_.size());
    for (const std::size_t i : order) {
      rows.push_back(rows_.rows_[i]);
      const auto first = rows_.cells_.begin() + static_cast<std::ptrdiff_t>(i * count);
      cells.insert(cells.end(), first, first + static_cast<std::ptrdiff_t>(count));
    }
    rows_.rows_ = std::move(rows);
    rows_.cells_ = std::move(cells);
  }

  const RunProfile& run_;
  Rows& rows_;
  std::set<Range> ranges_;
  std::map<Range, WindowSums> windows_;
  std::vector<StepLine> pending_;  // batches that were not exchanged yet, by rank
  std::int64_t first_ = 0, last_ = 0;
};

Rows::Rows(const RunProfile& run) : ranks_(run.ranks.size()) {
  Builder(run, *this).build();
}

std::int64_t Rows::steps() const {
  std::int64_t sum = 0;
  for (const Row& row : rows_) add_to(sum, row.steps);
  return sum;
}

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
