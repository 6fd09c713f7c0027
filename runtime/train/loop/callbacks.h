// Calls the trial's callbacks, with the phase, the random numbers and the errors that dtrain/train/callback.h promises.
// Training thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/rank/rank_session.h"
#include "dtrain/train/trial.h"
#include "loop/progress.h"
#include "state_visitor.h"

namespace dtrain::train {

class Callbacks {
 public:
  // Takes the trial's callbacks from its context. AgreedError unless all ranks have added the same callbacks and
  // metrics. The references outlive it. Collective.
  Callbacks(run::RankSession& session, TrialContext& context, const Position& position);

  bool empty() const { return callbacks_.empty(); }

  void on_training_start();
  void before_batch(const Batch& batch);
  void after_batch(const Metrics& metrics);
  void on_epoch_end();
  void on_validation_end(const std::map<std::string, double>& metrics);
  void on_checkpoint();
  void on_training_end();

  // Visits the state that each callback saves.
  void visit(StateVisitor& visitor);

 private:
  // `batch`: the batch number that the callbacks get.
  void call(const char* function, std::int64_t batch,
            const std::function<void(Callback&, const Callback::Position&)>& call_one);

  run::RankSession& session_;
  const std::vector<std::shared_ptr<Callback>> callbacks_;
  const Position& position_;
};

}  // namespace dtrain::train
