// What an optimizer computes: the state that it keeps of parameters, and one update of them. make_update() of a struct
// in dtrain/config/optimizers.h makes one; FlatOptimizer calls it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace dtrain::train {

// One update of a stretch of parameters.
struct UpdateStep {
  double rate = 0;           // the learning rate of this update
  std::int64_t updates = 0;  // how many these values have had before
  // The gradients are divided by it first: one float32 on the values' device, or undefined for 1. It is set where the
  // scale and the clipping of gradients are known on a device alone.
  at::Tensor divisor;
  // A copy of the values in bfloat16 that the update writes too, of their size and on their device; undefined: none.
  at::Tensor shadow;
  std::optional<at::Tensor> optional_divisor() const {
    return divisor.defined() ? std::optional(divisor) : std::nullopt;
  }
};

// Whose kernel updates values, and why it is not dtrain's where that could.
struct UpdateKernel {
  std::string whose = "libtorch";  // or "dtrain"
  std::string why;
};

class OptimizerUpdate {
 public:
  virtual ~OptimizerUpdate() = default;

  // At least 0, before the schedule's factor.
  virtual double learning_rate() const = 0;
  // A name for each tensor of state: "momentum". The tensors have the values' size and type, and are zero at first.
  virtual std::vector<std::string> state_names() const = 0;
  // Of values of a type on a device. An optimizer made of tensor operations has no kernel but libtorch's.
  virtual UpdateKernel kernel(c10::DeviceType, at::ScalarType) const { return {}; }
  // Updates `values` and `states` in place. All tensors are contiguous with one dimension, the same size, the same type
  // (float32 or float64) and the same device; `states` is in the order of state_names(). Gradients of float32 values
  // may be bfloat16. It must not wait for a device.
  //
  // An update works element by element, for values come in pieces of any size. A zero whose gradient and state are zero
  // stays zero. Gradients may be replaced by their quotient with the divisor and are else only read. Training thread,
  // without autograd.
  virtual void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                      const UpdateStep& step) const = 0;
};

}  // namespace dtrain::train
