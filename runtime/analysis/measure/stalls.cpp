#include "measure/evidence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "dtrain/base/clock.h"
#include "measure/statistics.h"

namespace dtrain::analysis {
namespace {

constexpr double kRegularShare = 0.7;   // of like intervals, or of expected moments that have an event
constexpr double kNeighbours = 0.15;    // tolerance between neighbours, in intervals
constexpr double kInBetween = 0.05;     // if other events come in between
constexpr double kLeastWeight = 0.5;    // of all
constexpr double kMostByChance = 0.01;  // probability
constexpr std::size_t kHeaviest = 64;   // events from which intervals are taken
constexpr std::size_t kLeastMembers = 3;

bool all_alike(const std::vector<double>& gaps, double middle, double tolerance) {
  const auto alike = std::ranges::count_if(gaps, [&](double gap) { return std::abs(gap - middle) <= tolerance; });
  return static_cast<double>(alike) >= kRegularShare * static_cast<double>(gaps.size());
}

// The chain of events that an interval connects to a first event, in both directions.
struct Chain {
  std::vector<std::size_t> members;
  double expected = 1;
  double weight = 0;
};

class Chains {
 public:
  Chains(const std::vector<double>& moments, const std::vector<double>& weights, double resolution)
      : moments_(moments), weights_(weights), resolution_(resolution) {}

  Chain from(std::size_t first, double interval) const {
    Chain chain{{first}, 1, weights_[first]};
    walk(first, interval, chain);
    walk(first, -interval, chain);
    std::sort(chain.members.begin(), chain.members.end());
    return chain;
  }
  double tolerance(double interval) const { return std::max(resolution_, kInBetween * std::abs(interval)); }

 private:
  // Passes over one missing event; two missing events end the chain.
  void walk(std::size_t first, double interval, Chain& chain) const {
    double at = moments_[first];
    int steps = 1;
    while (steps <= 2) {
      const auto next = heaviest(at + steps * interval, tolerance(interval));
      if (!next) {
        ++steps;
        continue;
      }
      chain.members.push_back(*next);
      chain.weight += weights_[*next];
      chain.expected += steps;
      at = moments_[*next];
      steps = 1;
    }
  }
  std::optional<std::size_t> heaviest(double moment, double tolerance) const {
    std::optional<std::size_t> found;
    const auto begin = std::lower_bound(moments_.begin(), moments_.end(), moment - tolerance) - moments_.begin();
    for (auto i = static_cast<std::size_t>(begin); i < moments_.size() && moments_[i] <= moment + tolerance; ++i) {
      if (!found || weights_[i] > weights_[*found]) found = i;
    }
    return found;
  }

  const std::vector<double>& moments_;
  const std::vector<double>& weights_;
  double resolution_;
};

// Returns an upper bound on the probability of `hits` in `tries` by chance, each with probability `hit` (Chernoff's
// bound).
double by_chance(double hits, double tries, double hit) {
  if (tries <= 0 || hits <= hit * tries) return 1;
  const double share = hits / tries;
  double exponent = share * std::log(share / hit);
  if (share < 1) exponent += (1 - share) * std::log((1 - share) / (1 - hit));
  return std::exp(-tries * exponent);
}

using profile::Phase;

constexpr std::size_t kWarmUpRows = 5;
constexpr double kDeviations = 6;          // beyond the median, in standard deviations estimated from the MAD
constexpr double kLeastExcess = 0.5;       // also beyond the median, in medians
constexpr double kMostStalledShare = 0.2;  // more are no exceptions
constexpr std::size_t kLeastEvents = 3;
constexpr std::size_t kMostInARow = 3;
constexpr double kOneRankShare = 0.7;
constexpr std::array kOwnFindings = {Phase::kValidation, Phase::kCheckpoint, Phase::kReduceMetrics, Phase::kFromDevice};

bool has_own_finding(Phase phase) {
  return std::find(kOwnFindings.begin(), kOwnFindings.end(), phase) != kOwnFindings.end();
}

// Returns the seconds of a row's step without phases that have their own findings, mean over ranks.
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

// Consecutive steps that took longer than usual.
struct Event {
  std::vector<std::size_t> rows;
  double seconds = 0;  // beyond the median step
};

// Finds events of at most kMostInARow steps. A delay in one rank's step can show in another rank's next step. More
// steps in a row are not a stall: findings about ranks, loaders and links cover such slow periods.
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

// Keeps only the events at regular intervals if most of the time goes to these.
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
  // If the other ranks had the same delay at the same time, no single rank is the cause.
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

std::optional<Regular> find_regular(const std::vector<double>& moments, const std::vector<double>& weights,
                                    double resolution) {
  const std::size_t count = moments.size();
  if (count < kLeastMembers) return std::nullopt;
  std::vector<double> gaps;
  for (std::size_t i = 1; i < count; ++i) gaps.push_back(moments[i] - moments[i - 1]);
  const double middle = median_low(gaps);
  Regular all{middle, std::vector<std::size_t>(count)};
  std::iota(all.members.begin(), all.members.end(), 0);
  if (all_alike(gaps, middle, std::max(resolution, kNeighbours * middle))) return all;

  std::vector<std::size_t> heavy = all.members;
  std::sort(heavy.begin(), heavy.end(), [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  heavy.resize(std::min(heavy.size(), kHeaviest));
  std::sort(heavy.begin(), heavy.end());
  const Chains chains(moments, weights, resolution);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double density = static_cast<double>(count) / (moments.back() - moments.front() + 2 * resolution);
  const std::size_t pairs = heavy.size() * (heavy.size() - 1) / 2;
  const auto tried = static_cast<double>(pairs);
  std::optional<Regular> best;
  double best_weight = kLeastWeight * total;
  for (std::size_t i = 0; i < heavy.size(); ++i) {
    for (std::size_t j = i + 1; j < heavy.size(); ++j) {
      const double interval = moments[heavy[j]] - moments[heavy[i]];
      if (interval <= 2 * resolution) continue;
      Chain chain = chains.from(heavy[i], interval);
      const auto members = static_cast<double>(chain.members.size());
      if (chain.weight < best_weight || chain.members.size() < kLeastMembers) continue;
      if (members < kRegularShare * chain.expected) continue;
      // Two members are there because the interval was taken from them.
      const double hit = 1 - std::exp(-density * (2 * chains.tolerance(interval) + resolution));
      if (tried * by_chance(members - 2, chain.expected - 2, hit) > kMostByChance) continue;
      best_weight = chain.weight;
      best = Regular{interval, std::move(chain.members)};
    }
  }
  if (best) {
    gaps.clear();
    for (std::size_t i = 1; i < best->members.size(); ++i) {
      gaps.push_back(moments[best->members[i]] - moments[best->members[i - 1]]);
    }
    best->interval = median_low(gaps);
  }
  return best;
}

std::optional<Stalls> find_stalls(const Evidence& evidence) {
  const Rows& rows = evidence.rows;
  std::vector<std::size_t> ordinary;  // of the steps recorded in full; later only outliers have rows of their own
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
  result.phase = static_cast<Phase>(std::ranges::max_element(blamed.by_phase) - blamed.by_phase.begin());
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
