// Whether training ends early: after `patience` validations in a row in which the metric has not improved. It decides
// from metrics that are the same on all ranks, so all of them decide the same. Training thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "dtrain/config/early_stopping.h"
#include "dtrain/run/rank_session.h"
#include "loop/improvement.h"
#include "state/state_visitor.h"

namespace dtrain::train {

class EarlyStop {
 public:
  // `settings`: empty: never. ConfigError for settings that make no sense.
  EarlyStop(run::RankSession& session, std::optional<config::EarlyStopping> settings);
  // Of the experiment, or of the trial. ConfigError if both have any. A metric that is empty is searcher.metric.
  static std::optional<config::EarlyStopping> settings_of(const run::RankSession& session,
                                                          std::optional<config::EarlyStopping> of_trial);

  // The metrics of a validation after this batch, among them that of the settings.
  void see(const std::map<std::string, double>& metrics, std::int64_t batch);
  // Also in a run that goes on from a checkpoint of its end, unless it has been given more patience.
  bool is_due() const { return settings_ && improvement_.waited() >= settings_->patience; }
  // Training ends here because it is due: says why, in the log, in events.jsonl and in plan.json.
  void report(std::int64_t batch) const;

  // Nothing if there are no settings.
  void visit(StateVisitor& visitor);

 private:
  run::RankSession& session_;
  const std::optional<config::EarlyStopping> settings_;
  Improvement improvement_;
};

}  // namespace dtrain::train
