// Waits for a validation metric to improve, for as many validations as the patience says: then training ends early, or
// the learning rate falls. All ranks decide the same, because the metrics are the same on all ranks. Training thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "dtrain/config/plateau.h"
#include "dtrain/rank/rank_session.h"
#include "model/flat_optimizer.h"
#include "state_visitor.h"

namespace dtrain::train {

// Keeps the best value so far and the number of validations since.
class Improvement {
 public:
  // `min_delta`: the least difference that is an improvement.
  Improvement(bool smaller_is_better, double min_delta)
      : smaller_is_better_(smaller_is_better), min_delta_(min_delta) {}

  // Takes the value of a validation after this batch. A value that is not finite is no improvement. The value of a
  // validation before the first batch is a value to compare with, and does not count as a wait.
  void see(double value, std::int64_t batch) {
    if (!improves(value)) {
      if (batch > 0) ++waited_;
      return;
    }
    best_ = value;
    best_batch_ = batch;
    waited_ = 0;
  }
  std::int64_t waited() const { return waited_; }  // validations since the best one, or since begin_waiting()
  void begin_waiting() { waited_ = 0; }
  std::optional<double> best() const { return best_; }
  std::int64_t best_batch() const { return best_batch_; }
  void forget() {
    best_.reset();
    waited_ = 0;
  }
  // Called by a part that contains this object. The best value by another metric is no measure for this one.
  void visit(StateVisitor& visitor, const std::string& metric) {
    const std::string judged = metric + (smaller_is_better_ ? "" : ", greater is better");
    std::string before = judged;
    visitor.text("metric", before);
    visitor.real("best", best_);
    visitor.number("best_batch", best_batch_);
    visitor.number("waited", waited_);
    if (before != judged) forget();
  }

 private:
  bool improves(double value) const {
    if (!std::isfinite(value)) return false;
    if (!best_) return true;
    return smaller_is_better_ ? value < *best_ - min_delta_ : value > *best_ + min_delta_;
  }

  bool smaller_is_better_;
  double min_delta_;
  std::optional<double> best_;
  std::int64_t best_batch_ = 0;
  std::int64_t waited_ = 0;
};

// Decides if training ends early: after `patience` validations in a row in which the metric has not improved.
class EarlyStop {
 public:
  // `settings`: empty: training never ends early. ConfigError for settings that make no sense.
  EarlyStop(rank::RankSession& session, std::optional<config::EarlyStopping> settings);
  // Returns the experiment's or the trial's settings. ConfigError if both have any. An empty metric: searcher.metric.
  static std::optional<config::EarlyStopping> settings_of(const rank::RankSession& session,
                                                          std::optional<config::EarlyStopping> of_trial);

  // Takes the metrics of a validation after this batch; the settings' metric is among them.
  void see(const std::map<std::string, double>& metrics, std::int64_t batch);
  // True also in a run that goes on from a checkpoint of its end, unless its patience has been raised.
  bool is_due() const { return settings_ && improvement_.waited() >= settings_->patience; }
  // Reports that training ends here, and why, in the log, in events.jsonl and in plan.json.
  void report(std::int64_t batch) const;

  // Visits nothing if there are no settings.
  void visit(StateVisitor& visitor);

 private:
  rank::RankSession& session_;
  const std::optional<config::EarlyStopping> settings_;
  Improvement improvement_;
};

// Lowers the learning rate when searcher.metric no longer improves, as torch.optim.lr_scheduler.ReduceLROnPlateau does
// with threshold_mode="abs" and a patience that is smaller by one.
class Plateau {
 public:
  // `settings`: empty: the learning rate never falls here. ConfigError for settings that make no sense.
  Plateau(rank::RankSession& session, std::optional<config::ReduceOnPlateau> settings, FlatOptimizer& optimizer);

  // Takes searcher.metric of a validation after this batch.
  void see(double metric, std::int64_t batch);
  // Keeps the factor of another run's state, but not its validations, which are no measure for this run's.
  void begin_waiting_anew() { improvement_.forget(); }
  // Visits nothing if there are no settings.
  void visit(StateVisitor& visitor);

 private:
  rank::RankSession& session_;
  const std::optional<config::ReduceOnPlateau> settings_;
  FlatOptimizer& optimizer_;
  Improvement improvement_;
  std::optional<double> factor_;  // factor of the learning rate; empty until the rate falls
};

}  // namespace dtrain::train
