// Sets evaluation mode for a while, and then restores the modes that a model's modules had. train() on the model would
// not do, because it sets every part, also a frozen batch norm that the trial has put into evaluation mode.
#pragma once

#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace dtrain::train {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) {
    modes_.emplace_back(&model, model.is_training());
    for (const auto& module : model.modules(/*include_self=*/false)) {
      modes_.emplace_back(module.get(), module->is_training());
    }
    model.eval();
  }
  ~EvaluationMode() {
    // A module's train() sets its parts too, so the module comes before its parts.
    for (const auto& [module, training] : modes_) {
      if (module->is_training() != training) module->train(training);
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

}  // namespace dtrain::train
