// The factors of sums of gradients on their way to an update. A strategy asks when it exchanges a bucket and keeps no
// copy: the number of ranks, and of the batches in a window, may have changed since.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtrain::train {

class WindowScale {
 public:
  virtual ~WindowScale() = default;
  // The factor for the sum over the ranks and batches of a full window.
  virtual double full() const = 0;
  // The factor for the window that is being exchanged, on top of full(): 1 if it is full and every rank had all its
  // batches. May wait for the ranks' announcements.
  virtual double correction() = 0;
  // If the loss was scaled, the factor that undoes it in its gradients: one float32 on their device. Else undefined.
  virtual at::Tensor inverse_of_loss_scale() const { return {}; }
};

}  // namespace dtrain::train
