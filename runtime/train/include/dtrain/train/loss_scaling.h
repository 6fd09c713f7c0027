// How a trial sets the scale of the loss where a step computes in float16 (mixed_precision: fp16).
#pragma once

namespace dtrain {

// The two settings of torch.amp.GradScaler that its users set. The scale halves after an update in which a gradient was
// not finite, which is skipped, and doubles after `growth_interval` updates in a row that were not.
struct LossScaling {
  double initial_scale = 65536;  // above 0
  int growth_interval = 2000;    // at least 1
};

}  // namespace dtrain
