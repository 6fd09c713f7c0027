// What `.grad` is between context.backward() and the update: the gradient, to be read. Its memory is what is being
// exchanged, and a rank that changed it (clip_grad_norm_, zero_grad, grad.mul_) would change what others have read
// already, or not yet. libtorch's copy-on-write storages show it: code that asks for memory to write to gets a copy, so
// the tensor lies elsewhere afterwards. Version counters would not do: the C++ clip_grad_norm_ writes through .data().
#pragma once

#include <ATen/ATen.h>

namespace dtrain::train {

class GradientGuard {
 public:
  // `gradient`'s memory outlives this and the view.
  explicit GradientGuard(const at::Tensor& gradient);

  // Looks like the gradient and reads its memory.
  const at::Tensor& view() const { return view_; }
  // Whether memory of the view was asked for to write to.
  bool written() const { return view_.const_data_ptr() != memory_.get(); }

 private:
  at::Tensor view_;
  at::DataPtr memory_;  // a second reference, so that a writer is never the last one, who would need no copy
};

}  // namespace dtrain::train
