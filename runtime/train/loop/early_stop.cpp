#include "loop/early_stop.h"

#include <cmath>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {

EarlyStop::EarlyStop(run::RankSession& session, std::optional<config::EarlyStopping> settings)
    : session_(session), settings_(std::move(settings)) {}

std::optional<config::EarlyStopping> EarlyStop::settings_of(const run::RankSession& session,
                                                            std::optional<config::EarlyStopping> of_trial) {
  const config::Experiment& experiment = session.experiment();
  if (!of_trial) return experiment.early_stopping;
  if (experiment.early_stopping) {
    throw ConfigError("the experiment has early_stopping, and the trial calls context.stop_early()",
                      "leave one of both out");
  }
  if (of_trial->metric.empty()) {
    of_trial->metric = experiment.searcher.metric;
    of_trial->smaller_is_better = experiment.searcher.smaller_is_better;
  }
  if (of_trial->metric.empty()) {
    throw ConfigError("context.stop_early() names no metric", "name one, or give searcher.metric in the experiment");
  }
  if (of_trial->patience < 1 || !(of_trial->min_delta >= 0)) {
    throw ConfigError("context.stop_early() has the patience " + std::to_string(of_trial->patience) +
                          " and the min_delta " + std::to_string(of_trial->min_delta),
                      "the patience must be at least 1, and min_delta at least 0");
  }
  if (experiment.min_validation_period.count == 0) {
    throw ConfigError("context.stop_early() has no effect without min_validation_period",
                      "add min_validation_period to the experiment");
  }
  return of_trial;
}

bool EarlyStop::is_improvement(double value) const {
  if (!std::isfinite(value)) return false;
  if (!best_) return true;
  return settings_->smaller_is_better ? value < *best_ - settings_->min_delta : value > *best_ + settings_->min_delta;
}

void EarlyStop::see(const std::map<std::string, double>& metrics, std::int64_t batch) {
  if (!settings_) return;
  const auto found = metrics.find(settings_->metric);
  const double value = found == metrics.end() ? std::nan("") : found->second;
  if (!is_improvement(value)) {
    if (batch > 0) ++waited_;  // an initial validation is a value to compare with
    return;
  }
  best_ = value;
  best_batch_ = batch;
  waited_ = 0;
}

void EarlyStop::report(std::int64_t batch) const {
  if (session_.world().rank != 0) return;
  std::string reason = settings_->metric + " has not improved";
  if (settings_->min_delta > 0) reason += " by more than " + Json(settings_->min_delta).dump();
  reason += waited_ == 1 ? " in the last validation" : " in the last " + std::to_string(waited_) + " validations";
  if (best_) reason += "; the best was " + Json(*best_).dump() + ", after batch " + std::to_string(best_batch_);
  session_.log()->info("training ends early, after batch {}: {}", batch, reason);
  Json facts = {{"batch", batch}, {"metric", settings_->metric}, {"reason", reason}};
  if (best_) facts.update({{"best", *best_}, {"best_batch", best_batch_}});
  session_.write_event("early_stop", facts);
  session_.update_plan("early_stop", facts);
}

void EarlyStop::visit(StateVisitor& visitor) {
  if (!settings_) return;
  std::string metric = settings_->metric;
  visitor.text("metric", metric);
  visitor.real("best", best_);
  visitor.number("best_batch", best_batch_);
  visitor.number("waited", waited_);
  if (metric == settings_->metric) return;
  // What was the best by another metric is no measure for this one.
  best_.reset();
  waited_ = 0;
}

}  // namespace dtrain::train
