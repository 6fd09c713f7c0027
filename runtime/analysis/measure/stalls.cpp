#include "measure/stalls.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "dtrain/base/clock.h"
#include "measure/regular.h"
#include "measure/statistics.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

constexpr std::size_t kWarmUpRows = 5;
constexpr double kDeviations = 6;          // beyond the median, in standard deviations estimated from the MAD
constexpr double kLeastExcess = 0.5;       // … and in medians
constexpr double kMostStalledShare = 0.2;  // more are no exceptions
constexpr std::size_t kLeastEvents = 3;
constexpr std::size_t kMostInARow = 3;
constexpr double kOneRankShare = 0.7;
constexpr std::array kOwnFindings = {Phase::kValidation, Phase::kCheckpoint, Phase::kReduceMetrics, Phase::kFromDevice};

bool has_own_finding(Phase phase) {
  return std::find(kOwnFindings.begin(), kOwnFindings.end(), phase) != kOwnFindings.end();
}

// Of a step, mean over ranks.
double row_s(const Rows& rows, std::size_t row) {
  double sum = 0;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    const StepLine& step = rows.at(row, r);
    sum += to_seconds(step.wall_ns);
    for (const Phase phase : kOwnFindings) sum -= to_seconds(phase_of(step, phase));
  }
  return sum / static_cast<double>(rows.ranks()) / static_cast<double>(rows.rows()[row].steps);
}

// The usual times of a rank's phases in a row.
using Usual = std::array<double, profile::kPhaseCount>;

std::vector<Usual> usual_times(const Rows& rows, const std::vector<std::size_t>& ordinary) {
  std::vector<Usual> result(rows.ranks());
  std::vector<double> values;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
      values.clear();
      for (const std::size_t row : ordinary) values.push_back(to_seconds(rows.at(row, r).phases[i]));
      result[r][i] = quantile(values, 0.5);
    }
  }
  return result;
}

// Steps in a row that took longer than usual.
struct Event {
  std::vector<std::size_t> rows;
  double seconds = 0;  // beyond the median step
};

// What a stall delays in one rank's step can show in another's next one; what takes many steps in a row is no stall but
// a time at which something is slow, which findings about ranks, loaders and links account for.
std::vector<Event> find_events(const Rows& rows, const std::vector<double>& walls, double step_s, double limit) {
  std::vector<Event> events;
  for (std::size_t i = kWarmUpRows; i < walls.size(); ++i) {
    const Row& row = rows.rows()[i];
    if (row.window || walls[i] - step_s <= limit) continue;
    if (events.empty() || row.first_batch - rows.rows()[events.back().rows.back()].last_batch > 2)
      events.emplace_back();
    events.back().rows.push_back(i);
    events.back().seconds += (walls[i] - step_s) * static_cast<double>(row.steps);
  }
  std::erase_if(events, [](const Event& event) { return event.rows.size() > kMostInARow; });
  return events;
}

// Leaves those that come at regular intervals, where most of the time goes at such.
void keep_regular(const Rows& rows, std::vector<Event>& events, Stalls& result) {
  std::vector<double> batches, times, weights;
  for (const Event& event : events) {
    const std::size_t first = event.rows.front();
    batches.push_back(static_cast<double>(rows.rows()[first].first_batch));
    times.push_back(to_seconds(rows.at(first, 0).start_ns));
    weights.push_back(event.seconds);
  }
  auto regular = find_regular(batches, weights, 1);
  if (regular) {
    result.every_batches = regular->interval;
  } else if ((regular = find_regular(times, weights, 2 * result.step_s))) {
    result.every_s = regular->interval;
  } else {
    return;
  }
  std::vector<Event> kept;
  for (const std::size_t i : regular->members) kept.push_back(std::move(events[i]));
  result.other_events = static_cast<std::int64_t>(events.size() - kept.size());
  events = std::move(kept);
}

struct Blame {
  std::vector<double> by_rank;
  std::array<double, profile::kPhaseCount> by_phase{};
};

void blame(const Rows& rows, std::size_t row, const std::vector<Usual>& usual, Blame& into) {
  std::size_t worst = 0;
  std::vector<double> own(rows.ranks(), 0);
  double least_wait_s = 0;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    const StepLine& step = rows.at(row, r);
    for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
      const double excess = to_seconds(step.phases[i]) - usual[r][i];
      const auto phase = static_cast<Phase>(i);
      if (phase == Phase::kAllreduceWait) {
        least_wait_s = r == 0 ? excess : std::min(least_wait_s, excess);
      } else if (!has_own_finding(phase)) {
        own[r] += excess;
      }
    }
    if (own[r] > own[worst]) worst = r;
  }
  if (least_wait_s > own[worst]) {
    into.by_phase[static_cast<std::size_t>(Phase::kAllreduceWait)] += least_wait_s;
    return;
  }
  // Where the others had the same at the same time, no single rank is the cause.
  std::vector<double> others;
  for (std::size_t r = 0; r < own.size(); ++r) {
    if (r != worst) others.push_back(own[r]);
  }
  if (quantile(others, 0.5) < 0.5 * own[worst]) into.by_rank[worst] += own[worst];
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (phase == Phase::kAllreduceWait || has_own_finding(phase)) continue;
    into.by_phase[i] += std::max(0.0, to_seconds(rows.at(row, worst).phases[i]) - usual[worst][i]);
  }
}

double waited_s(const Rows& rows, std::size_t row, std::size_t last) {
  const std::int64_t least = wait_of(rows.at(row, last));
  double beyond = 0;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    const std::int64_t wait = wait_of(rows.at(row, r));
    if (wait < least) return 0;  // another came later
    beyond += to_seconds(minus(wait, least));
  }
  return rows.ranks() > 1 ? beyond / static_cast<double>(rows.ranks() - 1) : 0;
}

}  // namespace

std::optional<Stalls> find_stalls(const Evidence& evidence) {
  const Rows& rows = evidence.rows;
  std::vector<std::size_t> ordinary;  // of the part recorded in full: later on only outliers have rows of their own
  std::vector<double> walls(rows.rows().size(), 0);
  for (std::size_t i = 0; i < rows.rows().size() && !rows.rows()[i].window; ++i) ordinary.push_back(i);
  if (ordinary.size() < 4 * kWarmUpRows) return std::nullopt;
  ordinary.erase(ordinary.begin(), ordinary.begin() + kWarmUpRows);
  std::vector<double> usual_walls;
  for (std::size_t i = 0; i < walls.size(); ++i) walls[i] = row_s(rows, i);
  for (const std::size_t row : ordinary) usual_walls.push_back(walls[row]);
  Stalls result;
  result.step_s = median_low(usual_walls);
  const double limit =
      std::max(kDeviations * kMadToDeviation * mad(usual_walls, result.step_s), kLeastExcess * result.step_s);
  std::vector<Event> events = find_events(rows, walls, result.step_s, limit);
  std::size_t stalled = 0;
  for (const Event& event : events) stalled += event.rows.size();
  if (static_cast<double>(stalled) > kMostStalledShare * static_cast<double>(rows.steps())) return std::nullopt;
  if (events.size() < kLeastEvents) return std::nullopt;
  keep_regular(rows, events, result);

  Blame blamed;
  blamed.by_rank.resize(rows.ranks(), 0);
  const std::vector<Usual> usual = usual_times(rows, ordinary);
  std::vector<double> excesses;
  for (const Event& event : events) {
    for (const std::size_t row : event.rows) blame(rows, row, usual, blamed);
    excesses.push_back(event.seconds);
    result.seconds += event.seconds;
  }
  result.events = static_cast<std::int64_t>(events.size());
  result.median_excess_s = median_low(excesses);
  result.phase =
      static_cast<Phase>(std::max_element(blamed.by_phase.begin(), blamed.by_phase.end()) - blamed.by_phase.begin());
  const auto worst = std::max_element(blamed.by_rank.begin(), blamed.by_rank.end());
  double all = 0;
  for (const double phase : blamed.by_phase) all += phase;
  if (rows.ranks() > 1 && *worst >= kOneRankShare * all) {
    result.rank = static_cast<int>(worst - blamed.by_rank.begin());
    for (const Event& event : events) {
      for (const std::size_t row : event.rows)
        result.waited_s += waited_s(rows, row, static_cast<std::size_t>(result.rank));
    }
  }
  return result;
}

}  // namespace dtrain::analysis
