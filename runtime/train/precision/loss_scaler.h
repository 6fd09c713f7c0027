// Dynamic loss scaling as in torch.amp.GradScaler (Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740).
// float16 has no numbers below 6e-8. So backward begins with the loss times a scale, and the update divides the
// gradients by it. If a gradient is not finite, the update is skipped and the scale falls.
//
// All values are on the device, in tensors that do not move. So no step makes the host wait, and a CUDA graph can
// contain all of it. Training thread; inverse() also the thread that runs backward. Uses the current stream.
#pragma once

#include <ATen/ATen.h>

#include "dtrain/train/loss_scaling.h"
#include "state_visitor.h"

namespace dtrain::train {

class LossScaler {
 public:
  static constexpr double kGrowth = 2, kBackoff = 0.5;

  // ConfigError for settings that make no sense.
  LossScaler(const LossScaling& settings, c10::Device device);

  // Returns the loss times the scale, with which backward begins.
  at::Tensor scaled(const at::Tensor& loss) const { return loss * scale_; }
  // Returns `factor` / scale, one float32.
  at::Tensor inverse(double factor = 1) const;

  // An update: begin_update(), then unscale() for all gradients that this rank updates, the optimizer with found_inf(),
  // and end_update().
  void begin_update() { found_inf_.zero_(); }
  // Records in found_inf() whether a gradient is not finite, and multiplies all by `factor`, one float32. All have one
  // type.
  void unscale(at::TensorList gradients, const at::Tensor& factor);
  // Only records in found_inf(), for gradients that were multiplied before.
  void look_at(at::TensorList gradients) { unscale(gradients, one_); }
  // One float32: 1 if the update must be skipped, else 0. The caller adds what other ranks have found.
  const at::Tensor& found_inf() const { return found_inf_; }
  // Sets the new scale. Counts the update if it was skipped.
  void end_update();

  // Three float32: the scale, found_inf() of the last update, and how many updates have been skipped.
  const at::Tensor& values() const { return values_; }
  void visit(StateVisitor& visitor);

 private:
  const int growth_interval_;
  at::Tensor values_;
  at::Tensor scale_, found_inf_, skipped_;  // views of values_
  at::Tensor growth_tracker_;               // int32: updates since the last change of the scale
  at::Tensor one_;
};

}  // namespace dtrain::train
