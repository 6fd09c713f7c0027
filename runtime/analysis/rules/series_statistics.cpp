#include "rules/series_statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "measure/statistics.h"

namespace dtrain::analysis::rules {
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

std::int64_t folded_above(const StepSeries& series, double threshold_s) {
  std::int64_t above = 0;
  for (const FoldedSteps& folded : series.folded) {
    if (folded.max_s <= threshold_s) continue;
    for (const auto& [value, times] : folded.values) above += value > threshold_s ? times : 0;
  }
  return above;
}

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

}  // namespace dtrain::analysis::rules
