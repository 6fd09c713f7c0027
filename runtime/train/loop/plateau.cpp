#include "loop/plateau.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {

namespace {

std::optional<config::ReduceOnPlateau> checked(const run::RankSession& session,
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

Plateau::Plateau(run::RankSession& session, std::optional<config::ReduceOnPlateau> settings, FlatOptimizer& optimizer)
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
  const config::Searcher& searcher = session_.experiment().searcher;
  const std::string judged = searcher.metric + (searcher.smaller_is_better ? "" : ", greater is better");
  std::string before = judged;
  visitor.text("metric", before);
  improvement_.visit(visitor);
  visitor.real("factor", factor_);
  if (!visitor.replaces()) return;
  optimizer_.set_rate_factor(factor_.value_or(1));
  // The best value by another metric is no measure for this one.
  if (before != judged) improvement_.forget();
}

}  // namespace dtrain::train
