#include "step/alone_mode.h"

namespace dtrain::train {

AloneMode::AloneMode(const StepParts& parts, bool sharded)
    : parts_(parts),
      vote_(parts.non_finite),
      step_(parts, sharded ? LocalUpdate::Parts::kOfThisRank : LocalUpdate::Parts::kAll) {}

bool AloneMode::end_batch() {
  const bool stepping = parts_.window.full();
  if (stepping) step_.take();
  parts_.in_flight.end_batch();
  return stepping;
}

bool AloneMode::flush() {
  if (parts_.window.rounds() == 0) return false;
  step_.take();
  return true;
}

}  // namespace dtrain::train
