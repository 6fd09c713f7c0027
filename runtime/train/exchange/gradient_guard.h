// Guards `.grad` between context.backward() and the update, when it may only be read. Its memory is being exchanged,
// and a rank that changed it (clip_grad_norm_, zero_grad, grad.mul_) would change values that others have read already,
// or not yet. libtorch's copy-on-write storages show a write: code that asks for memory to write gets a copy, so the
// tensor lies elsewhere afterwards. Version counters would not do: the C++ clip_grad_norm_ writes through .data().
#pragma once

#include <ATen/ATen.h>

namespace dtrain::train {

class GradientGuard {
 public:
  // `gradient`'s memory outlives this object and the view.
  explicit GradientGuard(const at::Tensor& gradient);

  // A tensor that looks like the gradient and reads its memory.
  const at::Tensor& view() const { return view_; }
  // True if code has asked to write the memory of the view.
  bool written() const { return view_.const_data_ptr() != memory_.get(); }

 private:
  at::Tensor view_;
  at::DataPtr memory_;  // a second reference, so that a writer is never the last user, who would need no copy
};

}  // namespace dtrain::train
