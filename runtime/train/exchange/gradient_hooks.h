// The autograd hooks that call GradientExchange::gradient_ready() when backward has finished a gradient. Autograd calls
// them on the thread that runs backward, which for CPU models is the thread that called it.
#pragma once

#include "exchange/gradient_exchange.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

class GradientHooks {
 public:
  // Both references outlive this object. A tensor has room for one such hook: a user's hook runs first.
  GradientHooks(FlatParameters& parameters, GradientExchange& exchange);
  // Puts the user's hooks back. Takes the gradients off the tensors: they lie in memory of the communicator, and the
  // model may outlive that memory.
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  FlatParameters& parameters_;
};

}  // namespace dtrain::train
