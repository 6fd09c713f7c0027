// What the ranks of a host computed while its agent waited for the next sample: on CPUs, the counterpart of a GPU's
// utilization.
#include <algorithm>
#include <array>

#include "rules/adapter.h"

namespace dtrain::analysis::rules {
namespace {

using profile::Phase;

// A GPU would be busy in these.
constexpr std::array kRankComputing{Phase::kTrainBatch, Phase::kForward,       Phase::kBackward,
                                    Phase::kGraph,      Phase::kOptimizerStep, Phase::kValidation};

double rank_computing_ns(const profile::PhaseTimes& phases) {
  double sum = 0;
  for (const Phase phase : kRankComputing) sum += static_cast<double>(phases[static_cast<std::size_t>(phase)]);
  return sum;
}

// Time of each sample in which the rank computed, when what it computed is spread evenly over its steps.
class ComputingOfSamples {
 public:
  explicit ComputingOfSamples(const std::vector<SystemLine>& samples)
      : samples_(samples), sums_ns_(samples.size(), 0) {}

  void add(std::int64_t start_ns, std::int64_t end_ns, double computed_ns) {
    if (end_ns <= start_ns) return;
    const double density = computed_ns / static_cast<double>(end_ns - start_ns);
    auto sample = std::upper_bound(samples_.begin(), samples_.end(), start_ns,
                                   [](std::int64_t time_ns, const SystemLine& line) { return time_ns < line.time_ns; });
    for (; sample != samples_.end() && sample->time_ns - sample->interval_ns < end_ns; ++sample) {
      const std::int64_t from_ns = std::max(start_ns, sample->time_ns - sample->interval_ns);
      const std::int64_t to_ns = std::min(end_ns, sample->time_ns);
      if (to_ns > from_ns) at(sample) += density * static_cast<double>(to_ns - from_ns);
    }
  }
  const std::vector<double>& sums_ns() const { return sums_ns_; }

 private:
  double& at(std::vector<SystemLine>::const_iterator sample) {
    return sums_ns_[static_cast<std::size_t>(sample - samples_.begin())];
  }

  const std::vector<SystemLine>& samples_;
  std::vector<double> sums_ns_;
};

}  // namespace

std::vector<std::optional<double>> computing_percent(const std::vector<const RankProfile*>& ranks,
                                                     const std::vector<SystemLine>& samples) {
  std::vector<std::optional<double>> busiest(samples.size());
  for (const RankProfile* rank : ranks) {
    if (rank->steps.empty() && rank->windows.empty()) continue;
    ComputingOfSamples computed(samples);
    for (const StepLine& step : rank->steps) {
      computed.add(step.start_ns, step.start_ns + step.wall_ns, rank_computing_ns(step.phases));
    }
    for (const WindowLine& window : rank->windows) {
      computed.add(window.start_ns, window.end_ns, rank_computing_ns(window.phases));
    }
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].interval_ns <= 0) continue;
      const double share = 100 * computed.sums_ns()[i] / static_cast<double>(samples[i].interval_ns);
      busiest[i] = std::max(busiest[i].value_or(0), std::min(100.0, share));
    }
  }
  return busiest;
}

}  // namespace dtrain::analysis::rules
