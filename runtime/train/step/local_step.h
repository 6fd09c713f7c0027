// An optimizer step on this rank's own gradients: no rank waits for another.
#pragma once

#include "step/step_mode.h"
#include "strategies/local_update.h"

namespace dtrain::train {

class LocalStep {
 public:
  // `parts`: which parameters this rank updates.
  LocalStep(const StepParts& step, LocalUpdate::Parts parts);
  // Over the open window, which it closes.
  void take();

 private:
  void take_over_written();

  StepParts step_;
  LocalUpdate strategy_;
};

}  // namespace dtrain::train
