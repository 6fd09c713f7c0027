#include "measure/rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace dtrain::analysis {
namespace {

using Range = std::pair<std::int64_t, std::int64_t>;  // first and last batch of a window

void add_step(StepLine& sum, const StepLine& step) {
  if (sum.wall_ns == 0) sum.start_ns = step.start_ns;
  sum.batch = std::max(sum.batch, step.batch);
  add_to(sum.wall_ns, step.wall_ns);
  add_to(sum.samples, step.samples);
  for (std::size_t i = 0; i < sum.phases.size(); ++i) add_to(sum.phases[i], step.phases[i]);
}

void add_window(StepLine& sum, const WindowLine& window) {
  sum.batch = window.last_batch;
  sum.start_ns = window.start_ns;
  sum.exchanged |= window.exchanged > 0;
  add_to(sum.wall_ns, window.wall_ns);
  add_to(sum.samples, window.samples);
  for (std::size_t i = 0; i < sum.phases.size(); ++i) add_to(sum.phases[i], window.phases[i]);
}

std::set<Range> window_ranges(const RunProfile& run) {
  std::set<Range> ranges;
  for (const RankProfile& rank : run.ranks) {
    for (const WindowLine& window : rank.windows) ranges.emplace(window.first_batch, window.last_batch);
  }
  return ranges;
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
    const bool exchanged =
        std::all_of(lines.begin(), lines.end(), [](const StepLine* line) { return line->exchanged; });
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
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return rows_.rows_[a].first_batch < rows_.rows_[b].first_batch;
    });
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

}  // namespace dtrain::analysis
