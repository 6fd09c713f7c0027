// Decides if training ends early: after `patience` validations in a row in which the metric has not improved. All ranks
// decide the same, because the metrics are the same on all ranks. Training thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "dtrain/config/early_stopping.h"
#include "dtrain/run/rank_session.h"
#include "loop/improvement.h"
#include "state_visitor.h"

namespace dtrain::train {

class EarlyStop {
 public:
  // `settings`: empty: training never ends early. ConfigError for settings that make no sense.
  EarlyStop(run::RankSession& session, std::optional<config::EarlyStopping> settings);
  // Returns the experiment's or the trial's settings. ConfigError if both have any. An empty metric: searcher.metric.
  static std::optional<config::EarlyStopping> settings_of(const run::RankSession& session,
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
  run::RankSession& session_;
  const std::optional<config::EarlyStopping> settings_;
  Improvement improvement_;
};

}  // namespace dtrain::train
