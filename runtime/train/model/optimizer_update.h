// What an optimizer computes: the state that it keeps of parameters, and one update of them. make_update() of a struct
// in dtrain/config/optimizers.h makes one; FlatOptimizer calls it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace dtrain::train {

class OptimizerUpdate {
 public:
  virtual ~OptimizerUpdate() = default;

  // At least 0, before the schedule's factor.
  virtual double learning_rate() const = 0;
  // A name for each tensor of state: "momentum". The tensors have the values' size and type, and are zero at first.
  virtual std::vector<std::string> state_names() const = 0;
  // Updates `values` and `states` in place. All tensors have one dimension, the same size and the same type (float32 or
  // float64); `states` is in the order of state_names(). `rate` is the learning rate of this update, and `updates` says
  // how many these values have had before.
  //
  // An update works element by element, for values come in pieces of any size. A zero whose gradient and state are zero
  // stays zero. Gradients are only read. Training thread, without autograd.
  virtual void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states, double rate,
                      std::int64_t updates) const = 0;
};

}  // namespace dtrain::train
