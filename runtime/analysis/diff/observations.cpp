#include "diff/compare_steps.h"

#include <algorithm>
#include <cmath>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "measure/statistics.h"

namespace dtrain::analysis::diff {
namespace {

using profile::Phase;

// Tuning of the gradient exchange is done within 100 steps.
constexpr std::int64_t kMostWarmUp = 100, kLeastWarmUp = 5;
constexpr std::int64_t kWarmUpFraction = 10;
constexpr double kGroupSteps = 100;
constexpr double kShortest = 1e-9;  // seconds; only a damaged dump has shorter steps
constexpr double kLongDeviations = 8, kLongShare = 0.1, kMostLong = 0.05;

// Returns the observation of a row, mean over ranks.
Observation observe_row(const Rows& rows, std::size_t index) {
  const Row& row = rows.rows()[index];
  Observation observation;
  observation.totals.steps = observation.totals.ordinary_steps = static_cast<double>(row.steps);
  const auto ranks = static_cast<double>(rows.ranks());
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    const StepLine& step = rows.at(index, r);
    observation.totals.samples += static_cast<double>(step.samples);
    observation.totals.time_s += to_seconds(minus(step.wall_ns, pauses_of(step))) / ranks;
    for (std::size_t i = 0; i < kPhases; ++i) {
      const bool whole = i == static_cast<std::size_t>(Phase::kTrainBatch);
      observation.totals.phases[i] += to_seconds(whole ? train_batch_of(step) : step.phases[i]) / ranks;
    }
  }
  observation.totals.phases[static_cast<std::size_t>(Phase::kValidation)] = 0;
  observation.totals.phases[static_cast<std::size_t>(Phase::kCheckpoint)] = 0;
  observation.totals.time_s = std::max(observation.totals.time_s, kShortest * observation.totals.steps);
  observation.step_s = observation.totals.time_s / observation.totals.steps;
  observation.start_s = to_seconds(rows.at(index, 0).start_ns);
  return observation;
}

void make_long(Totals& totals) {
  totals.ordinary_steps = 0;
  totals.phases.fill(0);
}

// Marks the longest of these rows, none of which is a window, as `long`: 5% at most.
void mark_long(std::vector<Observation>& rows) {
  std::vector<double> times;
  for (const Observation& row : rows) times.push_back(row.step_s);
  if (times.empty()) return;
  const double middle = median_low(times);
  const double most = quantile(times, 1 - kMostLong);
  const double limit = middle + std::max(kLongDeviations * mad(times, middle), kLongShare * middle);
  for (Observation& row : rows) {
    if (row.step_s > std::max(limit, most)) make_long(row.totals);
  }
}

Observation merged(const std::vector<Observation>& rows) {
  Observation group = rows.front();
  group.totals = {};
  double ordinary_s = 0;
  for (const Observation& row : rows) {
    group.totals.add(row.totals);
    ordinary_s += row.step_s * row.totals.ordinary_steps;
  }
  group.step_s = ordinary_s / group.totals.ordinary_steps;
  return group;
}

class Grouping {
 public:
  explicit Grouping(std::vector<Observation>& groups) : groups_(groups) {}
  void add_window(const Observation& window, std::int64_t last_batch) {
    close();
    groups_.push_back(window);
    window_end_ = last_batch;
  }
  void add_row(Observation row, std::int64_t first_batch) {
    if (first_batch <= window_end_) {  // an outlier of the window before
      make_long(row.totals);
      groups_.back().totals.add(row.totals);
      return;
    }
    steps_ += row.totals.steps;
    pending_.push_back(row);
    if (steps_ >= kGroupSteps) close();
  }
  void close() {
    if (!pending_.empty() && steps_ >= kGroupSteps / 2) {
      mark_long(pending_);
      groups_.push_back(merged(pending_));
    }
    pending_.clear();
    steps_ = 0;
  }

 private:
  std::vector<Observation>& groups_;
  std::vector<Observation> pending_;
  double steps_ = 0;
  std::int64_t window_end_ = INT64_MIN;
};

// Returns the seconds from rank 0's clock to wall time, by the header of its dump.
std::optional<double> wall_offset_s(const RunProfile& run) {
  if (run.ranks.empty()) return std::nullopt;
  const auto offset_ns = value_at<double>(object_at(run.ranks.front().header, "clock"), "offset_ns");
  return offset_ns ? std::optional(*offset_ns / 1e9) : std::nullopt;
}

constexpr std::size_t kLeastTurns = 30;
constexpr double kMostSteps = 4;  // in a turn, against the median turn: more is a pause of the other

struct Entry {
  double start_s;
  bool of_b;
  std::size_t index;
};

// Returns stretches of consecutive steps of one run without a step of the other.
std::vector<std::vector<Entry>> stretches(const Observations& a, const Observations& b) {
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < a.all.size(); ++i) entries.push_back({a.all[i].start_s, false, i});
  for (std::size_t i = 0; i < b.all.size(); ++i) entries.push_back({b.all[i].start_s, true, i});
  std::ranges::stable_sort(entries, [](const Entry& x, const Entry& y) { return x.start_s < y.start_s; });
  std::vector<std::vector<Entry>> result;
  for (const Entry& entry : entries) {
    if (result.empty() || result.back().front().of_b != entry.of_b) result.emplace_back();
    result.back().push_back(entry);
  }
  return result;
}

}  // namespace

void Totals::add(const Totals& other) {
  steps += other.steps;
  samples += other.samples;
  time_s += other.time_s;
  ordinary_steps += other.ordinary_steps;
  for (std::size_t i = 0; i < kPhases; ++i) phases[i] += other.phases[i];
}

bool has_windows(const RunProfile& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const RankProfile& rank) { return !rank.windows.empty(); });
}

Observations observe(const RunProfile& run, bool grouped) {
  Observations result;
  const Rows rows(run);
  if (rows.rows().empty()) return result;
  const std::int64_t steps = rows.steps();
  result.first_batch = rows.rows().front().first_batch;
  result.warm_up = std::clamp(steps / kWarmUpFraction, kLeastWarmUp, kMostWarmUp);
  const std::int64_t begin = plus(result.first_batch, result.warm_up);
  const auto offset_s = wall_offset_s(run);
  result.has_wall_clock = offset_s.has_value();
  Grouping groups(result.all);
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    const Row& row = rows.rows()[i];
    if (row.first_batch < begin) continue;
    Observation observation = observe_row(rows, i);
    observation.start_s += offset_s.value_or(0);
    if (!grouped) {
      if (row.window) break;
      result.all.push_back(observation);
    } else if (row.window) {
      groups.add_window(observation, row.last_batch);
    } else {
      groups.add_row(observation, row.first_batch);
    }
  }
  if (grouped) {
    groups.close();
  } else {
    mark_long(result.all);
  }
  for (const Observation& observation : result.all) {
    result.steps += std::llround(observation.totals.steps);
    result.long_steps += std::llround(observation.totals.steps - observation.totals.ordinary_steps);
    result.time_s += observation.totals.time_s;
    result.long_s += observation.totals.time_s - observation.step_s * observation.totals.ordinary_steps;
  }
  return result;
}

std::vector<Turn> find_turns(const Observations& a, const Observations& b) {
  if (!a.has_wall_clock || !b.has_wall_clock) return {};
  const auto all = stretches(a, b);
  std::vector<double> sizes;
  for (const auto& stretch : all) sizes.push_back(static_cast<double>(stretch.size()));
  const double most = kMostSteps * median_low(sizes);
  std::vector<Turn> turns;
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    if (std::max(sizes[i], sizes[i + 1]) > most) continue;
    Turn& turn = turns.emplace_back();
    for (const auto& stretch : {all[i], all[i + 1]}) {
      for (const Entry& entry : stretch) (entry.of_b ? turn.b : turn.a).push_back(entry.index);
    }
  }
  return turns.size() < kLeastTurns ? std::vector<Turn>{} : turns;
}

}  // namespace dtrain::analysis::diff
