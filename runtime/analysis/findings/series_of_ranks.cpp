// Makes the series of ranks: their steps, loaders and initialization; and the facts about the model from the plan.
#include <algorithm>
#include <array>

#include "dtrain/base/json.h"
#include "findings/series.h"
#include "read/json_fields.h"

namespace dtrain::analysis::findings {
namespace {

using profile::Phase;
using profile::Sketch;

constexpr auto kValidation = static_cast<std::size_t>(Phase::kValidation);
constexpr auto kLoading = static_cast<std::size_t>(Phase::kDataloaderNext);

double rank_seconds(double ns) {
  return ns / 1e9;
}
double rank_seconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

// Returns the windows of a rank as one distribution, with validations taken off the mean. The steps with validations
// are not known, so all values move by the same amount (a step with a validation is nearly always an outlier, and in
// full).
FoldedSteps fold(const RankProfile& rank) {
  FoldedSteps folded;
  const Sketch& wall = rank.window_sketches.wall;
  folded.steps = wall.count();
  if (folded.steps == 0) return folded;
  const auto count = static_cast<double>(folded.steps);
  const double mean_ns = wall.mean();
  double squares_ns2 = 0;
  std::int64_t validation_ns = 0;
  for (const WindowLine& window : rank.windows) {
    if (window.steps <= 0) continue;
    const auto here = static_cast<double>(window.steps);
    const double apart = static_cast<double>(window.wall_ns) / here - mean_ns;
    squares_ns2 += window.wall_m2 + apart * apart * here;
    add_to(validation_ns, window.phases[kValidation]);
  }
  const double shift_s = rank_seconds(static_cast<double>(validation_ns) / count);
  const auto shifted = [&](double ns) { return std::max(0.0, rank_seconds(ns) - shift_s); };
  folded.mean_s = shifted(mean_ns);
  folded.squares_s2 = squares_ns2 / 1e18;
  folded.min_s = shifted(static_cast<double>(wall.min()));
  folded.max_s = shifted(static_cast<double>(wall.max()));
  if (wall.zeros() > 0) folded.values.emplace_back(0.0, wall.zeros());
  for (const Sketch::Bin& bin : wall.bins()) {
    const double value =
        std::clamp(Sketch::value_of(bin.index), static_cast<double>(wall.min()), static_cast<double>(wall.max()));
    folded.values.emplace_back(shifted(value), bin.count);
  }
  return folded;
}

// Phases in which a GPU would be busy.
constexpr std::array kRankComputing{Phase::kTrainBatch, Phase::kForward,       Phase::kBackward,
                                    Phase::kGraph,      Phase::kOptimizerStep, Phase::kValidation};

double rank_computing_ns(const profile::PhaseTimes& phases) {
  double sum = 0;
  for (const Phase phase : kRankComputing) sum += static_cast<double>(phases[static_cast<std::size_t>(phase)]);
  return sum;
}

// The time in each sample in which the rank computed, if computing is spread evenly over each step.
class ComputingOfSamples {
 public:
  explicit ComputingOfSamples(const std::vector<SystemLine>& samples)
      : samples_(samples), sums_ns_(samples.size(), 0) {}

  void add(std::int64_t start_ns, std::int64_t end_ns, double computed_ns) {
    if (end_ns <= start_ns) return;
    const double density = computed_ns / static_cast<double>(end_ns - start_ns);
    auto sample = std::ranges::upper_bound(samples_, start_ns, {}, &SystemLine::time_ns);
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

std::vector<StepSeries> step_series(const RunProfile& profile) {
  std::vector<StepSeries> all;
  for (const RankProfile& rank : profile.ranks) {
    StepSeries training{rank.rank, rank.host, false, {}, {}};
    StepSeries evaluation{rank.rank, rank.host, true, {}, {}};
    training.steps.reserve(rank.steps.size());
    for (const StepLine& step : rank.steps) {
      const std::int64_t validation_ns = step.phases[kValidation];
      training.steps.push_back({step.batch, step.start_ns, rank_seconds(step.wall_ns - validation_ns), &step.phases});
      if (validation_ns > 0)
        evaluation.steps.push_back({step.batch, step.start_ns, rank_seconds(validation_ns), nullptr});
    }
    if (FoldedSteps folded = fold(rank); folded.steps > 0) training.folded.push_back(std::move(folded));
    if (!training.steps.empty() || !training.folded.empty()) all.push_back(std::move(training));
    if (!evaluation.steps.empty()) all.push_back(std::move(evaluation));
  }
  return all;
}

std::vector<LoaderSeries> loader_series(const RunProfile& profile) {
  std::vector<LoaderSeries> all;
  for (const RankProfile& rank : profile.ranks) {
    LoaderSeries series;
    series.rank = rank.rank;
    const MonitorProfile* const monitor = profile.monitor_of(rank);
    series.agent = monitor != nullptr ? monitor->agent : rank.agent;
    double workers = 0;
    std::int64_t fetches = 0;
    double fetch_ns = 0;
    for (const LoaderLine& line : rank.loader) {
      ++series.records;
      series.empty += line.queue_depth == 0 ? 1 : 0;
      workers += line.workers;
      if (line.fetch_ns >= 0) {
        ++fetches;
        fetch_ns += static_cast<double>(line.fetch_ns);
      }
      series.usage.add(line.usage);
      if (line.usage.batches > 0) series.read_s += rank_seconds(std::max<std::int64_t>(0, line.fetch_ns));
      if (line.pinned >= 0) series.pinned = series.pinned.value_or(true) && line.pinned == 1;
    }
    for (const WindowLine& window : rank.windows) {
      add_to(series.records, window.loader_records);
      add_to(series.empty, window.loader_empty);
      workers += static_cast<double>(window.loader_workers) * static_cast<double>(window.loader_records);
      add_to(fetches, window.loader_fetches);
      fetch_ns += static_cast<double>(window.loader_fetch_ns);
      series.usage.add(window.loader_usage);
      if (window.loader_usage.batches > 0) series.read_s += rank_seconds(window.loader_fetch_ns);
      if (window.loader_pinned >= 0) series.pinned = series.pinned.value_or(true) && window.loader_pinned == 1;
    }
    if (series.records > 0) series.workers = workers / static_cast<double>(series.records);
    if (fetches > 0) series.fetch_s = rank_seconds(fetch_ns / static_cast<double>(fetches));
    series.steps = rank.step_count();
    series.steps_s = rank_seconds(rank.wall_ns());
    series.waited_s = rank_seconds(rank.phase_ns(static_cast<Phase>(kLoading)));
    all.push_back(std::move(series));
  }
  return all;
}

std::vector<InitializationTime> initialization_times(const RunProfile& profile) {
  std::vector<InitializationTime> all;
  for (const RankProfile& rank : profile.ranks) {
    if (const auto took_s = rank.part_s("initialization")) {
      all.push_back({rank.rank, *took_s, true});
      continue;
    }
    const std::int64_t start_ns = integer(rank.header, "start_ns");
    const bool began_training = rank.step_count() > 0;
    if (start_ns <= 0 || began_training || !rank.end || rank.end->time_ns <= start_ns) continue;
    all.push_back({rank.rank, rank_seconds(rank.end->time_ns - start_ns), false});
  }
  return all;
}

ModelFacts model_facts(const RunProfile& profile) {
  ModelFacts facts;
  const Json& model = object_at(profile.plan, "model");
  facts.dtype = text(model, "dtype");
  for (const Json& shape : list_at(model, "shapes")) {
    const auto sizes = shape.find("sizes");
    if (sizes == shape.end() || !sizes->is_array()) continue;
    Shape& read = facts.shapes.emplace_back(Shape{text(shape, "name"), {}});
    for (const Json& size : *sizes) {
      const bool fits =
          size.is_number_integer() && size.get<std::int64_t>() >= 0 && size.get<std::int64_t>() < (1 << 30);
      read.sizes.push_back(fits ? size.get<std::int64_t>() : 0);
    }
  }
  for (const Json& batch : list_at(profile.plan, "batch_per_rank")) {
    if (batch.is_number_integer()) facts.batch_per_rank.push_back(batch.get<std::int64_t>());
  }
  facts.mixed_precision = text(object_at(profile.experiment, "optimizations"), "mixed_precision");
  const Json& optimizer = object_at(profile.plan, "optimizer");
  facts.optimizer = text(optimizer, "kind");
  facts.fused_optimizer = value_at<bool>(optimizer, "fused");
  return facts;
}

// The computing of a host's ranks between two samples of its monitor: for runs on CPUs, the counterpart of a GPU's
// utilization.

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

}  // namespace dtrain::analysis::findings
