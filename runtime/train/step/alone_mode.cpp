#include "step/alone_mode.h"

namespace dtrain::train {

AloneMode::AloneMode(const StepParts& parts, bool sharded)
    : parts_(parts),
      vote_(parts.non_finite),
      step_(parts, sharded ? LocalUpdate::Parts::kOfThisRank : LocalUpdate::Parts::kAll) {}

bool AloneMode::end_batch() {
  if (!parts_.window.full()) return false;
  step_.take();
  return true;
}

bool AloneMode::flush() {
  if (parts_.window.rounds() == 0) return false;
  step_.take();
  return true;
}

}  // namespace dtrain::train
