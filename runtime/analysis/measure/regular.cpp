#include "measure/regular.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "measure/statistics.h"

namespace dtrain::analysis {
namespace {

constexpr double kRegularShare = 0.7;   // of the intervals that are alike, or of the moments at which one comes
constexpr double kNeighbours = 0.15;    // tolerance between neighbours, in intervals
constexpr double kInBetween = 0.05;     // … where others come in between
constexpr double kLeastWeight = 0.5;    // of all
constexpr double kMostByChance = 0.01;  // probability
constexpr std::size_t kHeaviest = 64;   // events from which intervals are taken
constexpr std::size_t kLeastMembers = 3;

bool all_alike(const std::vector<double>& gaps, double middle, double tolerance) {
  const auto alike =
      std::count_if(gaps.begin(), gaps.end(), [&](double gap) { return std::abs(gap - middle) <= tolerance; });
  return static_cast<double>(alike) >= kRegularShare * static_cast<double>(gaps.size());
}

// Those that an interval leads to from a first one, in both directions.
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
  // One missing is gone over, two are the end.
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

// The most that the probability can be of as many hits by chance, each having the probability `hit` (Chernoff's bound).
double by_chance(double hits, double tries, double hit) {
  if (tries <= 0 || hits <= hit * tries) return 1;
  const double share = hits / tries;
  double exponent = share * std::log(share / hit);
  if (share < 1) exponent += (1 - share) * std::log((1 - share) / (1 - hit));
  return std::exp(-tries * exponent);
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
      // Two are there because the interval was taken from them.
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

}  // namespace dtrain::analysis
