#include "diff/compare_steps.h"

#include <algorithm>
#include <cmath>

#include "measure/statistics.h"

namespace dtrain::analysis::diff {
namespace {

std::vector<double> centered(std::span<const double> series) {
  std::vector<double> result(series.begin(), series.end());
  const double middle = mean(result);
  for (double& value : result) value -= middle;
  return result;
}

double covariance(const std::vector<double>& x, std::size_t lag) {
  if (lag >= x.size()) return 0;
  double sum = 0;
  for (std::size_t i = lag; i < x.size(); ++i) sum += x[i] * x[i - lag];
  return sum / static_cast<double>(x.size());
}

// Returns the lag beyond which autocorrelation is not significant for `quiet` lags in a row.
std::size_t last_lag(const std::vector<double>& covariances, std::size_t quiet, double limit) {
  std::size_t last = 0, silent = 0;
  for (std::size_t lag = 1; lag < covariances.size(); ++lag) {
    if (std::abs(covariances[lag]) < limit * covariances[0]) {
      if (++silent == quiet) return lag - quiet;
    } else {
      silent = 0;
      last = lag;
    }
  }
  return last;
}

using profile::Phase;

constexpr std::uint64_t kSeedA = 1, kSeedB = 2;

bool is_compared(std::size_t phase) {
  return phase != static_cast<std::size_t>(Phase::kValidation) && phase != static_cast<std::size_t>(Phase::kCheckpoint);
}

double throughput(const Totals& totals) {
  return totals.time_s > 0 ? totals.samples / totals.time_s : 0;
}

double phase_mean_s(const Totals& totals, std::size_t phase) {
  return totals.ordinary_steps > 0 ? totals.phases[phase] / totals.ordinary_steps : 0;
}

double change(double a, double b) {
  return a > 0 ? b / a - 1 : 0;
}

std::vector<double> step_times(const Observations& side) {
  std::vector<double> times;
  for (const Observation& observation : side.all) times.push_back(observation.step_s);
  return times;
}

// A median depends on the share of values above it, and a mean on the values: blocks are as long as the more dependent
// of the two requires. Values far out would hide the dependence of the others.
SideTest dependence(std::vector<double> series) {
  const double middle = median_low(series);
  const double reach = 3 * kMadToDeviation * mad(series, middle);
  std::vector<double> above;
  for (double& value : series) {
    above.push_back(value > middle ? 1 : 0);
    value = std::clamp(value, middle - reach, middle + reach);
  }
  return {autocorrelation(series, 1), std::max(block_length(series), block_length(above))};
}

Totals total(const Observations& side) {
  Totals sum;
  for (const Observation& observation : side.all) sum.add(observation.totals);
  return sum;
}

// The totals of both runs, or of one draw from them.
struct Estimate {
  double step_change = 0;
  Totals a, b;
};

// Independent runs: each is drawn from separately.
class Apart {
 public:
  Apart(const Observations& a, const Observations& b)
      : a_(a),
        b_(b),
        a_test_(dependence(step_times(a))),
        b_test_(dependence(step_times(b))),
        a_draws_(a.all.size(), a_test_.block_length, kSeedA),
        b_draws_(b.all.size(), b_test_.block_length, kSeedB) {}

  Estimate estimate() const {
    return {change(median_low(step_times(a_)), median_low(step_times(b_))), total(a_), total(b_)};
  }
  Estimate draw() {
    Estimate result;
    const double a_step = draw(a_, a_draws_, result.a);
    const double b_step = draw(b_, b_draws_, result.b);
    result.step_change = change(a_step, b_step);
    return result;
  }
  const SideTest& a_test() const { return a_test_; }
  const SideTest& b_test() const { return b_test_; }

 private:
  double draw(const Observations& side, StationaryBootstrap& draws, Totals& sum) {
    times_.clear();
    for (const std::size_t i : draws.draw()) {
      times_.push_back(side.all[i].step_s);
      sum.add(side.all[i].totals);
    }
    return quantile(times_, 0.5);
  }

  const Observations& a_;
  const Observations& b_;
  SideTest a_test_, b_test_;
  StationaryBootstrap a_draws_, b_draws_;
  std::vector<double> times_;
};

// Runs that took turns: whole turns are drawn, and a step's change is the median over turns.
class InTurns {
 public:
  InTurns(const Observations& a, const Observations& b, const std::vector<Turn>& turns)
      : pairs_(pairs(a, b, turns)), test_(test_of(pairs_)), draws_(pairs_.size(), test_.block_length, kSeedA) {}

  Estimate estimate() {
    std::vector<std::size_t> all(pairs_.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    return of(all);
  }
  Estimate draw() { return of(draws_.draw()); }
  const SideTest& a_test() const { return test_; }
  const SideTest& b_test() const { return test_; }

 private:
  struct Pair {
    double log_ratio = 0;
    Totals a, b;
  };

  static double add(const Observations& side, const std::vector<std::size_t>& indices, Totals& sum) {
    std::vector<double> times;
    for (const std::size_t i : indices) {
      times.push_back(side.all[i].step_s);
      sum.add(side.all[i].totals);
    }
    // An even number of times has the mean of the two middle ones as median. The lower one would favour the run whose
    // turns have an even number of steps.
    const double low = quantile(times, 0.5);
    if (times.size() % 2 == 1) return low;
    std::sort(times.begin(), times.end());
    return (low + times[times.size() / 2]) / 2;
  }

  static std::vector<Pair> pairs(const Observations& a, const Observations& b, const std::vector<Turn>& turns) {
    std::vector<Pair> result;
    for (const Turn& turn : turns) {
      Pair& pair = result.emplace_back();
      const double a_step = add(a, turn.a, pair.a);
      const double b_step = add(b, turn.b, pair.b);
      pair.log_ratio = std::log(b_step / a_step);
    }
    return result;
  }

  static SideTest test_of(const std::vector<Pair>& pairs) {
    std::vector<double> ratios;
    for (const Pair& pair : pairs) ratios.push_back(pair.log_ratio);
    return dependence(std::move(ratios));
  }

  Estimate of(const std::vector<std::size_t>& indices) {
    Estimate result;
    ratios_.clear();
    for (const std::size_t i : indices) {
      ratios_.push_back(pairs_[i].log_ratio);
      result.a.add(pairs_[i].a);
      result.b.add(pairs_[i].b);
    }
    result.step_change = std::exp(quantile(ratios_, 0.5)) - 1;
    return result;
  }

  std::vector<Pair> pairs_;
  SideTest test_;
  StationaryBootstrap draws_;
  std::vector<double> ratios_;
};

DiffVerdict judge(const DiffQuantity& quantity, double min_effect, bool more_is_worse) {
  const DiffInterval& interval = *quantity.interval;
  if (interval.low > min_effect) return more_is_worse ? DiffVerdict::kWorse : DiffVerdict::kBetter;
  if (interval.high < -min_effect) return more_is_worse ? DiffVerdict::kBetter : DiffVerdict::kWorse;
  return DiffVerdict::kNoChange;
}

template <typename Test>
void run_test(Test& test, const TestOptions& options, StepTest& result) {
  std::vector<double> steps, throughputs;
  std::vector<std::vector<double>> phases(result.phases.size());
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < kPhases; ++i) {
    if (is_compared(i)) which.push_back(i);
  }
  for (int draw = 0; draw < options.resamples; ++draw) {
    const Estimate estimate = test.draw();
    steps.push_back(estimate.step_change);
    throughputs.push_back(change(throughput(estimate.a), throughput(estimate.b)));
    for (std::size_t i = 0; i < which.size(); ++i) {
      phases[i].push_back((phase_mean_s(estimate.b, which[i]) - phase_mean_s(estimate.a, which[i])) / result.step.a);
    }
  }
  result.a = test.a_test();
  result.b = test.b_test();
  result.throughput.interval = percentile_interval(throughputs, options.confidence);
  result.throughput.verdict = judge(result.throughput, options.min_effect, false);
  if (!options.same_work) return;
  result.step.interval = percentile_interval(steps, options.confidence);
  result.step.verdict = judge(result.step, options.min_effect, true);
  std::vector<double> changes;
  for (const DiffQuantity& phase : result.phases) changes.push_back(phase.change);
  const auto intervals = joint_intervals(changes, phases, options.confidence);
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    result.phases[i].interval = intervals[i];
    result.phases[i].verdict = judge(result.phases[i], options.min_effect, true);
  }
}

template <typename Test>
StepTest compare(Test&& test, const Observations& a, const Observations& b, const TestOptions& options) {
  StepTest result;
  const Estimate found = test.estimate();
  result.step = {"step", median_low(step_times(a)), median_low(step_times(b)), found.step_change,
                 {},     DiffVerdict::kUndecided};
  const double a_rate = throughput(found.a), b_rate = throughput(found.b);
  result.throughput = {"throughput", a_rate, b_rate, change(a_rate, b_rate), {}, DiffVerdict::kUndecided};
  for (std::size_t i = 0; i < kPhases; ++i) {
    if (!is_compared(i)) continue;
    const double a_s = phase_mean_s(found.a, i), b_s = phase_mean_s(found.b, i);
    const std::string name(profile::name_of(static_cast<Phase>(i)));
    result.phases.push_back({name, a_s, b_s, (b_s - a_s) / result.step.a, {}, DiffVerdict::kUndecided});
  }
  if (std::min(a.all.size(), b.all.size()) >= kLeastObservations) run_test(test, options, result);
  return result;
}

}  // namespace

double autocorrelation(std::span<const double> series, std::size_t lag) {
  const std::vector<double> x = centered(series);
  const double variance = covariance(x, 0);
  return variance > 0 ? covariance(x, lag) / variance : 0;
}

double block_length(std::span<const double> series) {
  const auto n = static_cast<double>(series.size());
  if (n < 10) return 1;
  const std::vector<double> x = centered(series);
  const auto quiet = static_cast<std::size_t>(std::max(5.0, std::ceil(std::sqrt(std::log10(n)))));
  const std::size_t furthest = std::min(static_cast<std::size_t>(std::ceil(std::sqrt(n))) + quiet, series.size() - 1);
  std::vector<double> covariances;
  for (std::size_t lag = 0; lag <= furthest; ++lag) covariances.push_back(covariance(x, lag));
  if (covariances[0] <= 0) return 1;
  const double limit = 1.96 * std::sqrt(std::log10(n) / n);
  const std::size_t window = std::min(2 * std::max<std::size_t>(1, last_lag(covariances, quiet, limit)), furthest);
  double spectrum = covariances[0], slope = 0;
  for (std::size_t lag = 1; lag <= window; ++lag) {
    const double at = static_cast<double>(lag) / static_cast<double>(window);
    const double weight = at <= 0.5 ? 1 : 2 * (1 - at);
    spectrum += 2 * weight * covariances[lag];
    slope += 2 * weight * static_cast<double>(lag) * covariances[lag];
  }
  const double most = std::max(1.0, std::ceil(std::min(3 * std::sqrt(n), n / 3)));
  if (spectrum <= 0) return 1;
  return std::clamp(std::cbrt(slope * slope / (spectrum * spectrum) * n), 1.0, most);
}

StationaryBootstrap::StationaryBootstrap(std::size_t size, double block_length, std::uint64_t seed)
    : go_on_(1 - 1 / std::max(1.0, block_length)), random_(seed), indices_(size) {}

// Does not use the standard library's distributions, because they differ between implementations.
double StationaryBootstrap::uniform() {
  constexpr int kBits = 53;
  return std::ldexp(static_cast<double>(random_() >> (64 - kBits)), -kBits);
}

const std::vector<std::size_t>& StationaryBootstrap::draw() {
  const std::size_t size = indices_.size();
  std::size_t at = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const bool anew = i == 0 || uniform() >= go_on_;
    at = anew ? static_cast<std::size_t>(uniform() * static_cast<double>(size)) : (at + 1) % size;
    indices_[i] = at;
  }
  return indices_;
}

DiffInterval percentile_interval(std::vector<double>& draws, double confidence) {
  return {quantile(draws, (1 - confidence) / 2), quantile(draws, (1 + confidence) / 2)};
}

std::vector<DiffInterval> joint_intervals(std::span<const double> estimates, std::span<const std::vector<double>> draws,
                                          double confidence) {
  std::vector<double> deviations;
  std::vector<double> largest;
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    const std::vector<double> x = centered(draws[i]);
    deviations.push_back(std::sqrt(covariance(x, 0)));
    largest.resize(draws[i].size(), 0);
    if (deviations.back() <= 0) continue;
    for (std::size_t draw = 0; draw < draws[i].size(); ++draw) {
      largest[draw] = std::max(largest[draw], std::abs(draws[i][draw] - estimates[i]) / deviations.back());
    }
  }
  const double factor = quantile(largest, confidence);
  std::vector<DiffInterval> result;
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    result.push_back({estimates[i] - factor * deviations[i], estimates[i] + factor * deviations[i]});
  }
  return result;
}

StepTest compare_steps(const Observations& a, const Observations& b, const std::vector<Turn>& turns,
                       const TestOptions& options) {
  if (turns.empty()) return compare(Apart(a, b), a, b, options);
  return compare(InTurns(a, b, turns), a, b, options);
}

}  // namespace dtrain::analysis::diff
