// Lowers the learning rate when searcher.metric no longer improves, as torch.optim.lr_scheduler.ReduceLROnPlateau does
// with threshold_mode="abs" and a patience that is smaller by one. Training thread.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/config/reduce_on_plateau.h"
#include "dtrain/run/rank_session.h"
#include "loop/improvement.h"
#include "model/flat_optimizer.h"
#include "state_visitor.h"

namespace dtrain::train {

class Plateau {
 public:
  // `settings`: empty: the learning rate never falls here. ConfigError for settings that make no sense.
  Plateau(run::RankSession& session, std::optional<config::ReduceOnPlateau> settings, FlatOptimizer& optimizer);

  // Takes searcher.metric of a validation after this batch.
  void see(double metric, std::int64_t batch);
  // Keeps the factor of another run's state, but not its validations, which are no measure for this run's.
  void begin_waiting_anew() { improvement_.forget(); }
  // Visits nothing if there are no settings.
  void visit(StateVisitor& visitor);

 private:
  run::RankSession& session_;
  const std::optional<config::ReduceOnPlateau> settings_;
  FlatOptimizer& optimizer_;
  Improvement improvement_;
  std::optional<double> factor_;  // factor of the learning rate; empty until the rate falls
};

}  // namespace dtrain::train
