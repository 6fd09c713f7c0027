// What a model holds besides the parameters that training updates: buffers (running statistics) and frozen parameters.
#pragma once

#include <torch/nn/module.h>

#include "state/state_visitor.h"

namespace dtrain::train {

class ModelState {
 public:
  // The model outlives it.
  explicit ModelState(const torch::nn::Module& model) : model_(model) {}
  void visit(StateVisitor& visitor);

 private:
  const torch::nn::Module& model_;
};

}  // namespace dtrain::train
