#include "predict/predictor.h"

#include <algorithm>

#include "dtrain/base/clock.h"
#include "measure/statistics.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

constexpr double kMostGain = 5;
constexpr std::size_t kAll = SIZE_MAX;  // ranks, which wait for each other

}  // namespace

Predictor::Predictor(const Evidence& evidence)
    : rows_(evidence.rows),
      as_is_{[](const StepLine& step) { return to_seconds(training_of(step)); }, [](double s) { return s; }} {
  const auto count = static_cast<double>(rows_.ranks());
  for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
    double wall_s = 0;
    for (std::size_t r = 0; r < rows_.ranks(); ++r) {
      wall_s += to_seconds(minus(rows_.at(i, r).wall_ns, pauses_of(rows_.at(i, r))));
      samples_ += static_cast<double>(rows_.at(i, r).samples);
    }
    walls_.push_back(wall_s / count);
    all_s_ += walls_.back();
    steps_ += static_cast<double>(rows_.rows()[i].steps);
    has_windows_ |= rows_.rows()[i].window;
  }
  if (has_windows_) make_blocks();
}

Prediction Predictor::predict(Prediction prediction, const Changed& changed) const {
  const std::size_t slowest = changed.alone ? slowest_rank(changed) : kAll;
  const double windows_gain = changed.alone || !has_windows_ ? 1 : gain_of_windows(changed);
  std::vector<double> walls;
  double saved_s = 0;
  for (std::size_t i = 0; i < walls_.size(); ++i) {
    const double gained_s = (rows_.rows()[i].window ? windows_gain : 1) * saving_s(cells(i), changed, slowest);
    walls.push_back(std::max(0.0, walls_[i] - gained_s));
    saved_s += walls_[i] - walls.back();
  }
  return finish(std::move(prediction), saved_s, middle(walls));
}

Prediction Predictor::predict(Prediction prediction, double step_s) const {
  return finish(std::move(prediction), all_s_ - step_s * steps_, step_s);
}

Prediction Predictor::predict_aggregated(Prediction prediction, int k) const {
  double saved_s = 0;
  std::vector<double> walls;
  for (std::size_t i = 0; i < rows_.rows().size();) {
    std::vector<double> own(rows_.ranks(), 0);
    double wall_s = 0, now_s = 0, exchange_s = 0, update_s = 0;
    std::size_t in_group = 0;
    double steps = 0;
    for (; i < rows_.rows().size() && in_group < static_cast<std::size_t>(k); ++in_group, ++i) {
      wall_s += walls_[i];
      steps += static_cast<double>(rows_.rows()[i].steps);
      double most = 0, least_wait = least_wait_s(i), update = 0;
      for (std::size_t r = 0; r < rows_.ranks(); ++r) {
        const StepLine& step = rows_.at(i, r);
        own[r] += to_seconds(training_of(step));
        most = std::max(most, to_seconds(training_of(step)));
        update += to_seconds(plus(phase_of(step, Phase::kOptimizerStep), phase_of(step, Phase::kStepLrSchedulers)));
      }
      now_s += most + least_wait;
      exchange_s += least_wait;
      update_s += update / static_cast<double>(rows_.ranks());
      if (!rows_.rows()[i].window) continue;
      in_group = static_cast<std::size_t>(k) - 1;  // a window stands for many groups
    }
    const double part = 1.0 / k;
    const double then_s = *std::max_element(own.begin(), own.end()) - (1 - part) * update_s + part * exchange_s;
    const double wall = std::max(0.0, wall_s - (now_s - then_s));
    saved_s += wall_s - wall;
    walls.push_back(wall / steps);
  }
  return finish(std::move(prediction), saved_s, median_low(std::move(walls)));
}

double Predictor::least_wait_s(std::size_t row) const {
  std::int64_t least = INT64_MAX;
  for (std::size_t r = 0; r < rows_.ranks(); ++r) least = std::min(least, wait_of(rows_.at(row, r)));
  return to_seconds(least);
}

Predictor::Cells Predictor::cells(std::size_t row) const {
  Cells result;
  for (std::size_t r = 0; r < rows_.ranks(); ++r) result.ranks.push_back(&rows_.at(row, r));
  if (rows_.rows()[row].window) result.exchanges = static_cast<double>(rows_.rows()[row].steps);
  return result;
}

double Predictor::saving_s(const Cells& cells, const Changed& changed, std::size_t only) const {
  const auto length_s = [&](const Changed& change) {
    double most = 0, sum = 0;
    std::int64_t least_wait = INT64_MAX;
    for (const StepLine* step : cells.ranks) {
      const double own = change.own_s(*step);
      most = std::max(most, own);
      sum += own;
      least_wait = std::min(least_wait, wait_of(*step));
    }
    const double own_s = change.balanced ? sum / static_cast<double>(cells.ranks.size()) : most;
    return own_s + cells.exchanges * change.exchange_s(to_seconds(least_wait) / cells.exchanges);
  };
  if (only != kAll) return length_s(as_is_) - changed.own_s(*cells.ranks[only]);
  return length_s(as_is_) - length_s(changed);
}

// Sums steps in full by the hundred, as a window does.
void Predictor::make_blocks() {
  constexpr std::size_t kSteps = 100;
  for (std::size_t i = 0; i < rows_.rows().size() && !rows_.rows()[i].window; ++i) {
    if (i % kSteps == 0) blocks_.emplace_back(rows_.ranks());
    for (std::size_t r = 0; r < rows_.ranks(); ++r) {
      StepLine& sum = blocks_.back()[r];
      const StepLine& step = rows_.at(i, r);
      add_to(sum.wall_ns, step.wall_ns);
      for (std::size_t p = 0; p < sum.phases.size(); ++p) add_to(sum.phases[p], step.phases[p]);
    }
  }
  whole_rows_ = 0;
  while (whole_rows_ < rows_.rows().size() && !rows_.rows()[whole_rows_].window) ++whole_rows_;
}

// Returns the factor by which a change gains more in single steps than in sums of steps, measured on steps in full: in
// a window's sums, gains of alternating ranks cancel out.
double Predictor::gain_of_windows(const Changed& changed) const {
  double one_by_one_s = 0, put_together_s = 0;
  for (std::size_t i = 0; i < whole_rows_; ++i) one_by_one_s += saving_s(cells(i), changed, kAll);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Cells block;
    for (const StepLine& step : blocks_[b]) block.ranks.push_back(&step);
    block.exchanges = static_cast<double>(whole_rows_) / static_cast<double>(blocks_.size());
    put_together_s += saving_s(block, changed, kAll);
  }
  if (put_together_s <= 0 || one_by_one_s <= put_together_s) return 1;
  return std::min(kMostGain, one_by_one_s / put_together_s);
}

std::size_t Predictor::slowest_rank(const Changed& changed) const {
  std::vector<double> sums(rows_.ranks(), 0);
  for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
    for (std::size_t r = 0; r < rows_.ranks(); ++r) sums[r] += changed.own_s(rows_.at(i, r));
  }
  return static_cast<std::size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin());
}

// Returns the median over rows, each as one step.
double Predictor::middle(const std::vector<double>& walls) const {
  std::vector<double> values;
  for (std::size_t i = 0; i < walls.size(); ++i) {
    values.push_back(walls[i] / static_cast<double>(rows_.rows()[i].steps));
  }
  return median_low(std::move(values));
}

Prediction Predictor::finish(Prediction prediction, double saved_s, double p50_s) const {
  prediction.world_size = static_cast<int>(rows_.ranks());
  prediction.step_s = std::max(0.0, all_s_ - saved_s) / steps_;
  prediction.step_p50_s = p50_s;
  prediction.samples_per_s = prediction.step_s > 0 ? samples_ / (prediction.step_s * steps_) : 0;
  prediction.gain = prediction.step_s > 0 ? step_s() / prediction.step_s - 1 : 0;
  prediction.saved_s = saved_s;
  return prediction;
}

}  // namespace dtrain::analysis
