// Trial::save_state() and load_state() as entries of the training state. Training thread.
#pragma once

#include "dtrain/train/trial.h"
#include "state/state_visitor.h"

namespace dtrain::train {

class TrialStateEntries {
 public:
  explicit TrialStateEntries(Trial& trial) : trial_(trial) {}
  void visit(StateVisitor& visitor);

 private:
  Trial& trial_;
};

}  // namespace dtrain::train
