// The saved state of a trial or a callback, as entries of the training state. Training thread.
#pragma once

#include <functional>
#include <utility>

#include "dtrain/train/trial_state.h"
#include "state_visitor.h"

namespace dtrain::train {

class TrialStateEntries {
 public:
  using Save = std::function<TrialState()>;
  using Load = std::function<void(const TrialState&)>;
  // `save` and `load`: save_state() and load_state() of the object that has the state.
  TrialStateEntries(Save save, Load load) : save_(std::move(save)), load_(std::move(load)) {}
  void visit(StateVisitor& visitor);

 private:
  const Save save_;
  const Load load_;
};

}  // namespace dtrain::train
