#include "dtrain/analysis/what_if.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <spdlog/fmt/fmt.h>

#include "link_model.h"
#include "numbers.h"
#include "predict.h"
#include "statistics.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

// What ranks would do in a row after a change: own work by rank, and the exposed exchange.
struct Changed {
  std::function<double(const StepLine&)> own_s;
  std::function<double(double)> exchange_s;
  bool apart = false;  // ranks do not wait for each other: the one with most own work over all decides
  bool balanced = false;
};

// What the ranks did in a row, or in many put together.
struct Cells {
  std::vector<const StepLine*> ranks;
  double exchanges = 1;
};

class Predictor {
 public:
  explicit Predictor(const Evidence& evidence) : rows_(evidence.rows) {
    const auto count = static_cast<double>(rows_.ranks());
    for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
      double wall_s = 0;
      for (std::size_t r = 0; r < rows_.ranks(); ++r) {
        wall_s += seconds(rows_.at(i, r).wall_ns);
        samples_ += static_cast<double>(rows_.at(i, r).samples);
      }
      walls_.push_back(wall_s / count);
      all_s_ += walls_.back();
      steps_ += static_cast<double>(rows_.rows()[i].steps);
      has_windows_ |= rows_.rows()[i].window;
    }
    if (has_windows_) make_blocks();
  }

  double steps() const { return steps_; }
  double step_s() const { return all_s_ / steps_; }
  double step_p50_s() const { return middle(walls_); }
  double samples_per_s() const { return samples_ / all_s_; }

  Prediction predict(Prediction prediction, const Changed& changed) const {
    const std::size_t slowest = changed.apart ? slowest_rank(changed) : kAll;
    const double windows_gain = changed.apart || !has_windows_ ? 1 : gain_of_windows(changed);
    std::vector<double> walls;
    double saved_s = 0;
    for (std::size_t i = 0; i < walls_.size(); ++i) {
      const double saving_s = (rows_.rows()[i].window ? windows_gain : 1) * saving(cells(i), changed, slowest);
      walls.push_back(std::max(0.0, walls_[i] - saving_s));
      saved_s += walls_[i] - walls.back();
    }
    return finish(std::move(prediction), saved_s, middle(walls));
  }

  // A step that would take this long, each of them.
  Prediction predict(Prediction prediction, double step_s) const {
    return finish(std::move(prediction), all_s_ - step_s * steps_, step_s);
  }

  // Batches are exchanged k times more seldom: within k of them only the sums of the ranks' work matter.
  Prediction predict_aggregated(Prediction prediction, int k) const {
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
          own[r] += seconds(own_of(step));
          most = std::max(most, seconds(own_of(step)));
          update += seconds(phase_of(step, Phase::kOptimizerStep) + phase_of(step, Phase::kStepLrSchedulers));
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
    return finish(std::move(prediction), saved_s, median(std::move(walls)));
  }

 private:
  double least_wait_s(std::size_t row) const {
    std::int64_t least = INT64_MAX;
    for (std::size_t r = 0; r < rows_.ranks(); ++r) least = std::min(least, wait_of(rows_.at(row, r)));
    return seconds(least);
  }

  Cells cells(std::size_t row) const {
    Cells result;
    for (std::size_t r = 0; r < rows_.ranks(); ++r) result.ranks.push_back(&rows_.at(row, r));
    if (rows_.rows()[row].window) result.exchanges = static_cast<double>(rows_.rows()[row].steps);
    return result;
  }

  static double length_s(const Cells& cells, const Changed& changed, std::size_t only) {
    if (only != kAll) return changed.own_s(*cells.ranks[only]);
    double most = 0, sum = 0;
    std::int64_t least_wait = INT64_MAX;
    for (const StepLine* step : cells.ranks) {
      const double own = changed.own_s(*step);
      most = std::max(most, own);
      sum += own;
      least_wait = std::min(least_wait, wait_of(*step));
    }
    const double own_s = changed.balanced ? sum / static_cast<double>(cells.ranks.size()) : most;
    return own_s + cells.exchanges * changed.exchange_s(seconds(least_wait) / cells.exchanges);
  }

  static double saving(const Cells& cells, const Changed& changed, std::size_t only) {
    const Changed as_is{[](const StepLine& step) { return seconds(own_of(step)); }, [](double s) { return s; }};
    return length_s(cells, as_is, kAll) - length_s(cells, changed, only);
  }

  // Steps in full, a hundred at a time put together as a window puts them.
  void make_blocks() {
    constexpr std::size_t kSteps = 100;
    for (std::size_t i = 0; i < rows_.rows().size() && !rows_.rows()[i].window; ++i) {
      if (i % kSteps == 0) blocks_.emplace_back(rows_.ranks());
      for (std::size_t r = 0; r < rows_.ranks(); ++r) {
        StepLine& sum = blocks_.back()[r];
        const StepLine& step = rows_.at(i, r);
        sum.wall_ns += step.wall_ns;
        for (std::size_t p = 0; p < sum.phases.size(); ++p) sum.phases[p] += step.phases[p];
      }
    }
    whole_rows_ = 0;
    while (whole_rows_ < rows_.rows().size() && !rows_.rows()[whole_rows_].window) ++whole_rows_;
  }

  // In a window's sums, what ranks gain in turn cancels out. How much that hides is measured where steps are in full.
  double gain_of_windows(const Changed& changed) const {
    double one_by_one_s = 0, put_together_s = 0;
    for (std::size_t i = 0; i < whole_rows_; ++i) one_by_one_s += saving(cells(i), changed, kAll);
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      Cells block;
      for (const StepLine& step : blocks_[b]) block.ranks.push_back(&step);
      block.exchanges = static_cast<double>(whole_rows_) / static_cast<double>(blocks_.size());
      put_together_s += saving(block, changed, kAll);
    }
    if (put_together_s <= 0 || one_by_one_s <= put_together_s) return 1;
    return std::min(kMostGain, one_by_one_s / put_together_s);
  }

  std::size_t slowest_rank(const Changed& changed) const {
    std::vector<double> sums(rows_.ranks(), 0);
    for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
      for (std::size_t r = 0; r < rows_.ranks(); ++r) sums[r] += changed.own_s(rows_.at(i, r));
    }
    return static_cast<std::size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin());
  }

  // The median over rows, each as one step.
  double middle(const std::vector<double>& walls) const {
    std::vector<double> values;
    for (std::size_t i = 0; i < walls.size(); ++i) {
      values.push_back(walls[i] / static_cast<double>(rows_.rows()[i].steps));
    }
    return median(std::move(values));
  }

  Prediction finish(Prediction prediction, double saved_s, double p50_s) const {
    prediction.world_size = static_cast<int>(rows_.ranks());
    prediction.step_s = std::max(0.0, all_s_ - saved_s) / steps_;
    prediction.step_p50_s = p50_s;
    prediction.samples_per_s = prediction.step_s > 0 ? samples_ / (prediction.step_s * steps_) : 0;
    prediction.gain = prediction.step_s > 0 ? step_s() / prediction.step_s - 1 : 0;
    prediction.saved_s = saved_s;
    return prediction;
  }

  static constexpr double kMostGain = 5;
  static constexpr std::size_t kAll = SIZE_MAX;  // ranks, who wait for each other
  const Rows& rows_;
  bool has_windows_ = false;
  std::size_t whole_rows_ = 0;                 // before the first window
  std::vector<std::vector<StepLine>> blocks_;  // … put together
  std::vector<double> walls_;                  // of rows, mean over ranks
  double all_s_ = 0, steps_ = 0, samples_ = 0;
};

double own_s(const StepLine& step) {
  return seconds(own_of(step));
}
double without_loading_s(const StepLine& step) {
  return seconds(own_of(step) - loading_of(step));
}
double unchanged(double exchange_s) {
  return exchange_s;
}
double nothing(double /*exchange_s*/) {
  return 0;
}

// Seconds between two batches of the slowest rank's loader, by what its workers took for them; empty: not recorded.
std::optional<double> loader_period_s(const RunProfile& run) {
  std::optional<double> slowest;
  for (const RankProfile& rank : run.ranks) {
    std::vector<double> fetches;
    double workers = 1;
    for (const LoaderLine& line : rank.loader) {
      if (line.fetch_ns >= 0) fetches.push_back(seconds(line.fetch_ns));
      workers = std::max(workers, static_cast<double>(line.workers));
    }
    if (fetches.empty()) continue;
    slowest = std::max(slowest.value_or(0), mean(fetches) / workers);
  }
  return slowest;
}

// What a rank does in a step beside loading and training, of the rank that does most of it.
double rest_s(const Rows& rows) {
  std::vector<double> sums(rows.ranks(), 0);
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    for (std::size_t r = 0; r < rows.ranks(); ++r) {
      const StepLine& step = rows.at(i, r);
      sums[r] += seconds(phase_of(step, Phase::kOther) + phase_of(step, Phase::kCallbacks));
    }
  }
  return *std::max_element(sums.begin(), sums.end()) / static_cast<double>(rows.steps());
}

void predict_loader_alone(const Evidence& evidence, const Predictor& predictor, WhatIf& result) {
  Prediction prediction{.name = "loader_alone",
                        .title = "nothing but loading",
                        .assumption = "batches are read one after the other, and nobody trains",
                        .mock = "train"};
  const auto period = loader_period_s(evidence.run);
  if (!period) {
    result.notes.emplace_back(
        "loader_alone: the loader did not record what a batch takes it, so its own speed is not "
        "known; --mock train measures it");
    return;
  }
  result.changes.push_back(predictor.predict(std::move(prediction), *period + rest_s(evidence.rows)));
}

void predict_link(const Evidence& evidence, const Predictor& predictor, WhatIf& result) {
  const auto link = fit_link(evidence);
  if (!link) {
    result.notes.emplace_back("twice_the_link, half_the_bytes: no exchange of buckets was recorded in full");
    return;
  }
  const auto change = [&](const char* name, const char* title, const std::string& assumption, double exposed_s) {
    const double share = link->exposed_s > 0 ? std::min(1.0, exposed_s / link->exposed_s) : 1;
    const Changed changed{own_s, [share](double exchange_s) { return share * exchange_s; }};
    result.changes.push_back(
        predictor.predict({.name = name, .title = title, .assumption = assumption, .mock = ""}, changed));
  };
  const std::string measured =
      fmt::format("{} buckets of {} in all take {}, {} of it exposed", link->buckets, format_bytes(link->bytes),
                  seconds_text(link->transfer_s), seconds_text(link->exposed_s));
  change("twice_the_link", "a link twice as fast", measured + "; the latency stays", link->exposed_if(2, 1, 1));
  change("half_the_bytes", "half the bytes (gradient_compression: fp16 or bf16)",
         measured + "; converting costs nothing", link->exposed_if(1, 1, 0.5));
}

}  // namespace

WhatIf predict(const Evidence& evidence) {
  WhatIf result;
  if (evidence.rows.rows().empty()) {
    result.notes.emplace_back("no step was recorded by all ranks: nothing to predict from");
    return result;
  }
  const Predictor predictor(evidence);
  if (predictor.step_s() <= 0) {
    result.notes.emplace_back("the recorded steps took no time: nothing to predict from");
    return result;
  }
  result.step_s = predictor.step_s();
  result.step_p50_s = predictor.step_p50_s();
  result.samples_per_s = predictor.samples_per_s();
  result.changes.push_back(predictor.predict({.name = "free_loader",
                                              .title = "batches are there at once",
                                              .assumption = "everything else takes what it took",
                                              .mock = "loader"},
                                             {without_loading_s, unchanged}));
  predict_loader_alone(evidence, predictor, result);
  if (evidence.rows.ranks() > 1) {
    result.changes.push_back(predictor.predict({.name = "free_network",
                                                .title = "gradients are exchanged at once",
                                                .assumption = "ranks do not wait for each other at all",
                                                .mock = "comm"},
                                               {own_s, nothing, true}));
    result.changes.push_back(predictor.predict({.name = "compute_alone",
                                                .title = "neither loading nor communication",
                                                .assumption = "ranks do not wait at all",
                                                .mock = ""},
                                               {without_loading_s, nothing, true}));
    result.changes.push_back(predictor.predict({.name = "balanced",
                                                .title = "the ranks' work is the same in every step",
                                                .assumption = "the sum of their work stays",
                                                .mock = ""},
                                               {own_s, unchanged, false, true}));
    predict_link(evidence, predictor, result);
    for (const int k : {2, 4}) {
      result.changes.push_back(predictor.predict_aggregated(
          {.name = fmt::format("aggregate_{}", k),
           .title = fmt::format("exchange {}x more seldom (aggregation_frequency)", k),
           .assumption =
               fmt::format("the effective batch is {} times as large; whether it learns as well is not said", k),
           .mock = ""},
          k));
    }
  }
  std::stable_sort(result.changes.begin(), result.changes.end(),
                   [](const Prediction& a, const Prediction& b) { return a.gain > b.gain; });
  predict_scaling(evidence, result);
  return result;
}

}  // namespace dtrain::analysis
