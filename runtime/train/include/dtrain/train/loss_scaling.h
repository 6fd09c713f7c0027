// The settings of the loss scale of a trial whose steps compute in float16 (mixed_precision: fp16).
#pragma once

namespace dtrain {

// Two settings of torch.amp.GradScaler. An update in which a gradient is not finite is skipped, and the scale halves.
// After `growth_interval` updates in a row without such a gradient the scale doubles.
struct LossScaling {
  double initial_scale = 65536;  // above 0
  int growth_interval = 2000;    // at least 1
};

}  // namespace dtrain
