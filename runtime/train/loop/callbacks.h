// Calls the trial's callbacks, with the phase, the random numbers and the errors that dtrain/train/callback.h promises.
// Training thread.
#pragma once

#include <memory>
#include <tuple>
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
  Callbacks(rank::RankSession& session, TrialContext& context, const Position& position);

  bool empty() const { return callbacks_.empty(); }

  // Calls this function of each callback, with what it gets besides the position.
  template <auto function, typename... Given>
  void tell(const Given&... given) {
    if (callbacks_.empty()) return;
    const auto& event = std::get<CallbackEvent<function>>(kCallbackEvents);
    const Callback::Position position{position_.batches + event.ahead, position_.epoch};
    tell({event.name, position, {&given...}, [&](Callback& callback) { (callback.*function)(position, given...); }});
  }

  // Visits the state that each callback saves.
  void visit(StateVisitor& visitor);

 private:
  void tell(const Callback::Event& event);

  rank::RankSession& session_;
  const std::vector<std::shared_ptr<Callback>> callbacks_;
  const Position& position_;
};

}  // namespace dtrain::train
