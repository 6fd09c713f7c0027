// Steps that take much longer than the others: above the mean by more than `stddev` standard deviations, for each rank
// and for its training steps and validations apart. The first `n_outliers` of a series are ignored; the first step of a
// run is often one of them.
#include <algorithm>
#include <array>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

enum class StepMode { kBoth, kTrain, kEval };
constexpr std::array kStepModes{config::Word<StepMode>{"TRAIN", StepMode::kTrain},
                                config::Word<StepMode>{"EVAL", StepMode::kEval}};  // null: both

struct StepOutlier {
  static constexpr const char* kWord = "StepOutlier";
  static constexpr const char* kText = "Steps that take much longer than the others.";
  double stddev = 3;  // standard deviations above the mean
  std::int64_t n_outliers = 10;
  StepMode mode = StepMode::kBoth;
  void declare_keys(config::Keys& keys) {
    keys.number(
        {"stddev", "A step is an outlier if it is longer than the mean by more than this many standard deviations."},
        stddev, {0, 1000});
    keys.integer({"n_outliers", "This many outliers of each rank, the first ones, are ignored."}, n_outliers,
                 {0, kMaxPoints});
    keys.nullable_choice({"mode", "The steps to look at: TRAIN, EVAL, or null for both."}, mode, kStepModes);
  }
  RuleResult judge(const RuleData& data) const;
};

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
  const bool with_phases =
      std::any_of(series.steps.begin(), series.steps.end(), [](const Step& step) { return step.phases != nullptr; });
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

bool is_asked_for(const StepSeries& series, StepMode mode) {
  return mode == StepMode::kBoth || (mode == StepMode::kEval) == series.evaluation;
}

}  // namespace

RuleResult StepOutlier::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "report", "steps",
      "Looks for steps that take much longer than the others: their duration should be about the same throughout the "
      "training.",
      "Look at what happened during the outliers: a phase that took longer than usual, a busy CPU, a slow disk.");
  std::int64_t outliers = 0;
  std::int64_t ignored = 0;
  Json all = Json::array();
  for (const StepSeries& one : data.steps) {
    if (!is_asked_for(one, mode)) continue;
    const SeriesStatistics statistics = statistics_of(one);
    if (statistics.steps == 0) continue;
    // Rounding makes equal durations differ from their mean.
    const double threshold_s = statistics.mean_s + std::max(stddev * statistics.stddev_s, 1e-9 * statistics.mean_s);
    const Outliers found = find_outliers(one, threshold_s);
    const std::int64_t folded = folded_above(one, threshold_s);
    const std::int64_t of_this = static_cast<std::int64_t>(found.steps.size()) + folded;
    result.datapoints += statistics.steps;
    outliers += of_this;
    ignored += std::min(of_this, n_outliers);
    all.push_back(describe(one, statistics, threshold_s, found, folded));
  }
  if (result.datapoints == 0) return not_applicable(std::move(result), "no step was recorded");
  result.triggered = outliers - ignored;
  result.counts = {{"steps", result.datapoints},
                   {"normal", result.datapoints - outliers},
                   {"outliers", outliers},
                   {"ignored_by_n_outliers", ignored},
                   {"triggered", result.triggered}};
  result.details["series"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_step_outlier() {
  return std::make_unique<RuleOf<StepOutlier>>();
}

}  // namespace dtrain::analysis::rules
