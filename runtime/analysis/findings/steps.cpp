// The durations of steps and of what surrounds them: rules about outliers and the start, stalls, and the parts of the
// waterfall that could be saved.
#include <algorithm>
#include <array>
#include <cmath>

#include <spdlog/fmt/fmt.h>

#include "findings/judgement.h"
#include "measure/statistics.h"
#include "measure/system_metrics.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

WeightedValues all_values(const StepSeries& series) {
  WeightedValues values;
  values.reserve(series.steps.size());
  for (const Step& step : series.steps) values.emplace_back(step.seconds, 1);
  for (const FoldedSteps& folded : series.folded)
    values.insert(values.end(), folded.values.begin(), folded.values.end());
  std::sort(values.begin(), values.end());
  return values;
}

// Returns the number of folded steps whose duration is above `threshold_s`.
std::int64_t folded_above(const StepSeries& series, double threshold_s) {
  std::int64_t above = 0;
  for (const FoldedSteps& folded : series.folded) {
    if (folded.max_s <= threshold_s) continue;
    for (const auto& [value, times] : folded.values) above += value > threshold_s ? times : 0;
  }
  return above;
}

// Returns the numbers of steps that last at most `threshold_s`, in each of `bins` equal parts between `from_s` and
// `to_s`. Steps beyond these count in the first or last part.
std::vector<std::int64_t> histogram_of(const StepSeries& series, double threshold_s, double from_s, double to_s,
                                       std::size_t bins) {
  std::vector<std::int64_t> counts(bins, 0);
  const double width = (to_s - from_s) / static_cast<double>(bins);
  const auto add = [&](double value, std::int64_t times) {
    if (value > threshold_s) return;
    const double at = width > 0 ? std::clamp((value - from_s) / width, 0.0, static_cast<double>(bins - 1)) : 0.0;
    counts[static_cast<std::size_t>(at)] += times;
  };
  for (const Step& step : series.steps) add(step.seconds, 1);
  for (const FoldedSteps& folded : series.folded) {
    for (const auto& [value, times] : folded.values) add(value, times);
  }
  return counts;
}

using profile::kPhaseCount;
using profile::Phase;
using Means = std::array<double, kPhaseCount>;  // seconds

constexpr std::size_t kHistogramBins = 100;  // of the histogram of normal steps
constexpr std::size_t kMostOutliers = 50;    // outliers of a series, in the details

struct Outliers {
  std::vector<const Step*> steps;
  Means normal{}, during{};  // mean time in each phase: of the other steps, of the outliers
};

Outliers find_outliers(const StepSeries& series, double threshold_s) {
  Outliers result;
  std::int64_t normal = 0;
  std::int64_t during = 0;
  for (const Step& step : series.steps) {
    const bool outlier = step.seconds > threshold_s;
    if (outlier) result.steps.push_back(&step);
    if (step.phases == nullptr) continue;
    ++(outlier ? during : normal);
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      (outlier ? result.during : result.normal)[i] += static_cast<double>((*step.phases)[i]) / 1e9;
    }
  }
  for (double& seconds : result.normal) seconds /= static_cast<double>(std::max<std::int64_t>(1, normal));
  for (double& seconds : result.during) seconds /= static_cast<double>(std::max<std::int64_t>(1, during));
  return result;
}

Json to_json(const Means& means) {
  Json json = Json::object();
  for (std::size_t i = 0; i < kPhaseCount; ++i) json[std::string(name_of(static_cast<Phase>(i)))] = means[i];
  return json;
}

// An outlier, and the phase that took more than it does in normal steps.
Json to_json(const Step& step, const Means& normal) {
  Json json = {{"batch", step.batch}, {"start_ns", step.start_ns}, {"seconds", step.seconds}};
  if (step.phases == nullptr) return json;
  std::size_t most = 0;
  double more_s = 0;
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    const double beyond_s = static_cast<double>((*step.phases)[i]) / 1e9 - normal[i];
    if (beyond_s > more_s) {
      more_s = beyond_s;
      most = i;
    }
  }
  if (more_s > 0) {
    json["phase"] = std::string(name_of(static_cast<Phase>(most)));
    json["beyond_normal_s"] = more_s;
  }
  return json;
}

Json describe(const StepSeries& series, const SeriesStatistics& s, double threshold_s, const Outliers& outliers,
              std::int64_t folded) {
  const double to_s = std::min(threshold_s, s.max_s);
  Json listed = Json::array();
  for (const Step* step : outliers.steps) {
    if (listed.size() == kMostOutliers) break;
    listed.push_back(to_json(*step, outliers.normal));
  }
  const bool with_phases = std::ranges::any_of(series.steps, [](const Step& step) { return step.phases != nullptr; });
  Json json = {{"rank", series.rank},
               {"host", series.host},
               {"mode", series.evaluation ? "EVAL" : "TRAIN"},
               {"steps", s.steps},
               {"mean_s", s.mean_s},
               {"max_s", s.max_s},
               {"p99_s", s.p99_s},
               {"p95_s", s.p95_s},
               {"p50_s", s.p50_s},
               {"min_s", s.min_s},
               {"stddev_s", s.stddev_s},
               {"median_s", s.median_s},
               {"mad_s", s.mad_s},
               {"threshold_s", threshold_s},
               {"outliers", static_cast<std::int64_t>(outliers.steps.size()) + folded},
               {"outliers_in_windows", folded},  // of long runs; their batches are not known
               {"outlier_steps", std::move(listed)},
               {"histogram",
                {{"from_s", s.min_s},
                 {"to_s", to_s},
                 {"steps", histogram_of(series, threshold_s, s.min_s, to_s, kHistogramBins)}}}};
  if (with_phases && !series.evaluation) {
    json["phases_of_normal_steps_s"] = to_json(outliers.normal);
    if (!outliers.steps.empty()) json["phases_of_outliers_s"] = to_json(outliers.during);
  }
  return json;
}

std::string judge_outliers(const RuleData& data, const Parameters& p, Finding& result) {
  const auto mode = p.get<JudgedSteps>("mode");
  std::int64_t outliers = 0, ignored = 0;
  Json all = Json::array();
  for (const StepSeries& series : data.steps) {
    if (mode != JudgedSteps::kBoth && (mode == JudgedSteps::kEval) != series.evaluation) continue;
    const SeriesStatistics statistics = statistics_of(series);
    if (statistics.steps == 0) continue;
    // Rounding makes equal durations differ from their mean.
    const double threshold_s =
        statistics.mean_s + std::max(p["stddev"] * statistics.stddev_s, 1e-9 * statistics.mean_s);
    const Outliers found = find_outliers(series, threshold_s);
    const std::int64_t folded = folded_above(series, threshold_s);
    const std::int64_t of_this = static_cast<std::int64_t>(found.steps.size()) + folded;
    result.datapoints += statistics.steps;
    outliers += of_this;
    ignored += std::min(of_this, p.count("n_outliers"));
    all.push_back(describe(series, statistics, threshold_s, found, folded));
  }
  if (result.datapoints == 0) return "no step was recorded";
  result.triggered = outliers - ignored;
  result.counts = {{"steps", result.datapoints},
                   {"normal", result.datapoints - outliers},
                   {"outliers", outliers},
                   {"ignored_by_n_outliers", ignored},
                   {"triggered", result.triggered}};
  result.details["series"] = std::move(all);
  return {};
}

std::string judge_initialization(const RuleData& data, const Parameters& p, Finding& result) {
  Json all = Json::array();
  double longest_s = 0;
  std::int64_t unfinished = 0;
  for (const InitializationTime& rank : data.initialization) {
    result.triggered += rank.seconds > 60 * p["threshold"] ? 1 : 0;
    unfinished += rank.finished ? 0 : 1;
    longest_s = std::max(longest_s, rank.seconds);
    all.push_back({{"rank", rank.rank}, {"seconds", rank.seconds}, {"finished", rank.finished}});
  }
  result.datapoints = static_cast<std::int64_t>(data.initialization.size());
  if (all.empty()) return "when a rank's process started is not recorded";
  result.counts = {{"ranks", result.datapoints},
                   {"never_began_training", unfinished},
                   {"in_time", result.datapoints - result.triggered},
                   {"triggered", result.triggered}};
  result.details = {{"longest_s", longest_s}, {"ranks", std::move(all)}};
  return {};
}

// Returns the advice for stalls in a phase. `when`: "at this interval", "in those steps".
std::string stall_advice(Phase phase, const std::string& when, bool one_host) {
  switch (phase) {
    case Phase::kDataloaderNext:
      return "look at what the data source does " + when + ": opening the next file, filling a shuffle buffer";
    case Phase::kAllreduceWait:
      return one_host ? "look at what else runs on the ranks' cores at these moments: they exchange through memory"
                      : "look at the link at these moments: other traffic, retransmissions, a switch that fails over";
    case Phase::kCallbacks:
      return "do less in the callback that runs " + when + ", or hand it to another thread";
    default:
      return "look at what runs " + when +
             " within this phase: logging, synchronous input or output, clearing caches, a scheduled job on the host";
  }
}

struct Cost {
  const char* part;
  const char* title;  // before the seconds
  const char* advice;
};

constexpr std::array kCosts = {
    Cost{"host_to_device", "copying batches to the device takes",
         "copy smaller batches, or prepare them on the device"},
    Cost{"metrics", "fetching and reducing metrics takes", "reduce metrics less often (scheduling_unit)"},
    Cost{"checkpoints", "writing checkpoints takes",
         "take them less often (min_checkpoint_period), or write them to a faster disk (checkpoint_storage)"},
    Cost{"callbacks", "callbacks take", "do less in callbacks, or less often"},
    Cost{"validation", "validation takes", "validate less often (min_validation_period)"},
    Cost{"other", "code outside every phase takes",
         "look at what the program does between loading, computing and updating"},
    Cost{"unattributed", "outside the batches, the loop takes",
         "look at what runs between batches; the warnings show whether records are missing"},
};

// Returns the seconds of a waterfall part for which the finding of stalls accounts, mean over ranks.
double stalled_s(const Evidence& evidence, const std::optional<Stalls>& stalls, const std::string& part) {
  using profile::Phase;
  if (!stalls) return 0;
  const bool here = (part == "callbacks" && stalls->phase == Phase::kCallbacks) ||
                    (part == "other" && stalls->phase == Phase::kOther) ||
                    (part == "host_to_device" && stalls->phase == Phase::kToDevice);
  if (!here) return 0;
  return stalls->rank < 0 ? stalls->seconds : stalls->seconds / static_cast<double>(evidence.run.ranks.size());
}

// True if no setting caused a checkpoint: a run always takes one at its end and when it is stopped.
bool has_only_last_checkpoints(const RunHistory& history) {
  return !history.checkpoints.empty() &&
         std::all_of(history.checkpoints.begin(), history.checkpoints.end(), [](const CheckpointAccount& checkpoint) {
           return checkpoint.reason == "end" || checkpoint.reason == "stop";
         });
}

std::string advice_for(const Cost& cost, const RunHistory& history) {
  if (std::string_view(cost.part) != "checkpoints" || !has_only_last_checkpoints(history)) return cost.advice;
  return "no setting leaves it out, because every run takes one at its end; in a longer run it matters less, and a "
         "faster disk (checkpoint_storage) shortens it";
}

}  // namespace

SeriesStatistics statistics_of(const StepSeries& series) {
  SeriesStatistics result;
  result.steps = static_cast<std::int64_t>(series.steps.size());
  double sum_s = 0;
  for (const Step& step : series.steps) sum_s += step.seconds;
  for (const FoldedSteps& folded : series.folded) {
    result.steps += folded.steps;
    sum_s += folded.mean_s * static_cast<double>(folded.steps);
  }
  if (result.steps == 0) return result;
  const auto count = static_cast<double>(result.steps);
  result.mean_s = sum_s / count;
  double squares = 0;
  result.min_s = series.steps.empty() ? series.folded.front().min_s : series.steps.front().seconds;
  result.max_s = result.min_s;
  for (const Step& step : series.steps) {
    squares += (step.seconds - result.mean_s) * (step.seconds - result.mean_s);
    result.min_s = std::min(result.min_s, step.seconds);
    result.max_s = std::max(result.max_s, step.seconds);
  }
  for (const FoldedSteps& folded : series.folded) {
    const double apart = folded.mean_s - result.mean_s;
    squares += folded.squares_s2 + apart * apart * static_cast<double>(folded.steps);
    result.min_s = std::min(result.min_s, folded.min_s);
    result.max_s = std::max(result.max_s, folded.max_s);
  }
  result.stddev_s = std::sqrt(squares / count);

  WeightedValues values = all_values(series);
  result.p50_s = weighted_quantile(values, result.steps, 0.50);
  result.p95_s = weighted_quantile(values, result.steps, 0.95);
  result.p99_s = weighted_quantile(values, result.steps, 0.99);
  result.median_s = result.p50_s;
  for (auto& [value, times] : values) value = std::abs(value - result.median_s);
  std::sort(values.begin(), values.end());
  result.mad_s = weighted_quantile(values, result.steps, 0.50);
  return result;
}

// Steps that take much longer than the others: above the mean by more than `stddev` standard deviations, for each rank
// and for its training steps and validations apart. The first `n_outliers` of a series are ignored; the first step of a
// run is often one of them.
Judgement step_outlier() {
  return {.id = "StepOutlier",
          .text = "Steps that take much longer than the others.",
          .group = "report",
          .unit = "steps",
          .title =
              "Looks for steps that take much longer than the others: their duration should be about the same "
              "throughout the training.",
          .advice =
              "Look at what happened during the outliers: a phase that took longer than usual, a busy CPU, a slow "
              "disk.",
          .parameters = {real("stddev",
                              "A step is an outlier if it is longer than the mean by more than this many standard "
                              "deviations.",
                              3, {0, 1000}),
                         whole("n_outliers", "This many outliers of each rank, the first ones, are ignored.", 10,
                               {0, kMaxPoints}),
                         {"mode", "The steps to look at: TRAIN, EVAL, or null for both.", JudgedSteps::kBoth}},
          .judge = judge_outliers};
}

// The time of a rank from the start of its process to the first step of its training loop.
Judgement max_initialization_time() {
  return {.id = "MaxInitializationTime",
          .text = "Time until the training loop begins.",
          .group = "report",
          .unit = "ranks",
          .title = "Compares the time until the training loop begins with a limit in minutes.",
          .advice =
              "Starting takes too long: read or fetch data while the training runs instead of before it, keep "
              "data on a disk of the host, or prepare it once for all runs.",
          .parameters = {real("threshold", "The longest time, in minutes.", 20, {0, 1'000'000})},
          .judge = judge_initialization};
}

bool are_covered(const Stalls& stalls, const Evidence& evidence, const Analysis& analysis) {
  if (is_quota_doing(evidence, stalls)) return true;
  // A program that takes a rank's core now and then makes its steps stall, too.
  for (const Straggler& straggler : analysis.stragglers.ranks) {
    if (stalls.rank >= 0 && straggler.rank == evidence.run.ranks[static_cast<std::size_t>(stalls.rank)].rank &&
        straggler.cause == "cpu_contention") {
      return true;
    }
  }
  const bool regular = stalls.every_batches || stalls.every_s;
  return !regular && stalls.phase == Phase::kDataloaderNext;  // a slow loader
}

std::vector<Finding> find_stalling(const Run& run) {
  if (!run.stalls) return {};
  const Stalls& stalls = *run.stalls;
  const RankProfile* const rank =
      stalls.rank >= 0 ? &run.evidence.run.ranks[static_cast<std::size_t>(stalls.rank)] : nullptr;
  const bool regular = stalls.every_batches || stalls.every_s;
  const std::string when = stalls.every_batches ? fmt::format("every {:.0f} batches", *stalls.every_batches)
                           : stalls.every_s     ? fmt::format("every {}", seconds_text(*stalls.every_s))
                                                : fmt::format("{} times", count_text(stalls.events));
  const std::string where = stalls.phase == Phase::kAllreduceWait ? "the exchange" : std::string(name_of(stalls.phase));
  Finding finding{.cause = regular ? "periodic_stalls" : "stalls",
                  .title = fmt::format("{} for {}, {}, in {}: {}",
                                       rank != nullptr ? rank_name(*rank) + " stalls" : "the run stalls",
                                       seconds_text(stalls.mean_excess_s()), when, where, seconds_text(stalls.seconds)),
                  .evidence = fmt::format(
                      "{} times a batch took {} longer (mean; median {}) than the median batch of {}: {} in all",
                      count_text(stalls.events), seconds_text(stalls.mean_excess_s()),
                      seconds_text(stalls.median_excess_s), seconds_text(stalls.step_s), seconds_text(stalls.seconds)),
                  .advice = stall_advice(stalls.phase, regular ? "at this interval" : "in those steps",
                                         on_one_host(run.evidence.run)),
                  .seconds = stalls.seconds,
                  .rank = rank != nullptr ? rank->rank : -1,
                  .host = rank != nullptr ? rank->host : "",
                  .fault = true};
  if (stalls.other_events > 0) {
    finding.evidence +=
        fmt::format("; {} others, at no regular intervals, are not counted", count_text(stalls.other_events));
  }
  return {finding};
}

// Finds where a healthy run's time goes: the parts of the waterfall that could be saved.
std::vector<Finding> find_costs(const Run& run) {
  const auto& [evidence, analysis, stalls] = run;
  std::vector<Finding> found;
  for (const Cost& cost : kCosts) {
    const double in_stalls_s = stalled_s(evidence, stalls, cost.part);
    const double part_s = analysis.waterfall.part_s(cost.part);
    const double seconds = part_s - in_stalls_s;
    const bool on_cpu = std::string_view(cost.part) == "host_to_device" && !ranks_have_gpus(evidence.run);
    const char* const title = on_cpu ? "bringing batches into the model's form takes" : cost.title;
    found.push_back({.id = cost.part,
                     .title = fmt::format("{} {}", title, seconds_text(seconds)),
                     .evidence = fmt::format("{} in the waterfall, mean over ranks{}", seconds_text(part_s),
                                             less_stalls(in_stalls_s)),
                     .advice = on_cpu ? "give batches the dtype and the memory format that the model computes in"
                                      : advice_for(cost, analysis.summary.history),
                     .seconds = seconds});
  }
  return found;
}

}  // namespace dtrain::analysis::findings
