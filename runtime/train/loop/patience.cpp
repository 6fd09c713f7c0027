#include "loop/patience.h"

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {
namespace {

std::optional<config::ReduceOnPlateau> checked(const rank::RankSession& session,
                                               std::optional<config::ReduceOnPlateau> settings) {
  if (!settings) return settings;
  const config::Experiment& experiment = session.experiment();
  if (experiment.searcher.metric.empty()) {
    throw ConfigError("context.reduce_lr_on_plateau() has no metric to watch",
                      "give searcher.metric in the experiment");
  }
  if (experiment.min_validation_period.count == 0) {
    throw ConfigError("context.reduce_lr_on_plateau() has no effect without min_validation_period",
                      "add min_validation_period to the experiment");
  }
  if (settings->patience < 1 || !(settings->factor >= 0 && settings->factor < 1) || !(settings->min_delta >= 0) ||
      !(settings->min_factor >= 0 && settings->min_factor <= 1)) {
    throw ConfigError("context.reduce_lr_on_plateau() has the factor " + std::to_string(settings->factor) +
                          ", the patience " + std::to_string(settings->patience) + ", the min_delta " +
                          std::to_string(settings->min_delta) + " and the min_factor " +
                          std::to_string(settings->min_factor),
                      "the factor must be from 0 to below 1, the patience at least 1, min_delta at least 0, and "
                      "min_factor from 0 to 1");
  }
  return settings;
}

}  // namespace

EarlyStop::EarlyStop(rank::RankSession& session, std::optional<config::EarlyStopping> settings)
    : session_(session),
      settings_(std::move(settings)),
      improvement_(!settings_ || settings_->smaller_is_better, settings_ ? settings_->min_delta : 0) {}

std::optional<config::EarlyStopping> EarlyStop::settings_of(const rank::RankSession& session,
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

void EarlyStop::see(const std::map<std::string, double>& metrics, std::int64_t batch) {
  if (!settings_) return;
  const auto found = metrics.find(settings_->metric);
  improvement_.see(found == metrics.end() ? std::nan("") : found->second, batch);
}

void EarlyStop::report(std::int64_t batch) const {
  if (session_.world().rank != 0) return;
  std::string reason = settings_->metric + " has not improved";
  if (settings_->min_delta > 0) reason += " by more than " + Json(settings_->min_delta).dump();
  const std::int64_t waited = improvement_.waited();
  const std::optional<double> best = improvement_.best();
  reason += waited == 1 ? " in the last validation" : " in the last " + std::to_string(waited) + " validations";
  if (best) {
    reason += "; the best was " + Json(*best).dump() + ", after batch " + std::to_string(improvement_.best_batch());
  }
  session_.log()->info("training ends early, after batch {}: {}", batch, reason);
  Json facts = {{"batch", batch}, {"metric", settings_->metric}, {"reason", reason}};
  if (best) facts.update({{"best", *best}, {"best_batch", improvement_.best_batch()}});
  session_.write_event("early_stop", facts);
  session_.update_plan("early_stop", facts);
}

void EarlyStop::visit(StateVisitor& visitor) {
  if (settings_) improvement_.visit(visitor, settings_->metric);
}

Plateau::Plateau(rank::RankSession& session, std::optional<config::ReduceOnPlateau> settings, FlatOptimizer& optimizer)
    : session_(session),
      settings_(checked(session, std::move(settings))),
      optimizer_(optimizer),
      improvement_(session.experiment().searcher.smaller_is_better, settings_ ? settings_->min_delta : 0) {}

void Plateau::see(double metric, std::int64_t batch) {
  if (!settings_) return;
  improvement_.see(metric, batch);
  if (improvement_.waited() < settings_->patience) return;
  improvement_.begin_waiting();
  const double before = factor_.value_or(1);
  factor_ = std::max(before * settings_->factor, settings_->min_factor);
  if (*factor_ == before) return;
  optimizer_.set_rate_factor(*factor_);
  if (session_.world().rank != 0) return;
  const Json facts = {{"batch", batch},
                      {"metric", session_.experiment().searcher.metric},
                      {"factor", *factor_},
                      {"learning_rate", optimizer_.learning_rate()}};
  session_.log()->info("{} has not improved in the last {} validations: after batch {} the learning rate is {}",
                       session_.experiment().searcher.metric, settings_->patience, batch, optimizer_.learning_rate());
  session_.write_event("learning_rate_reduced", facts);
}

void Plateau::visit(StateVisitor& visitor) {
  if (!settings_) return;
  improvement_.visit(visitor, session_.experiment().searcher.metric);
  visitor.real("factor", factor_);
  if (visitor.replaces()) optimizer_.set_rate_factor(factor_.value_or(1));
}

}  // namespace dtrain::train
