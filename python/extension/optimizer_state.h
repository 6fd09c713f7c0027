// The state of the engine's step for Python: the optimizer's state of each parameter, and averaged gradients for
// Python's optimizers that update by themselves. Collective, between two batches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "dtrain/train/trial.h"

namespace dtrain::python {

// An optimizer's state of one parameter.
struct ParameterState {
  std::int64_t updates = 0;                   // number of updates so far
  std::map<std::string, at::Tensor> tensors;  // by the engine's names: exp_avg, momentum
};

// Returns the state by parameter name. `whole`: complete copies on every rank; otherwise the engine's own tensors, in
// which only the part that this rank updates is current.
std::map<std::string, ParameterState> read_optimizer_state(TrialContext& context, bool whole);

// Number of optimizer steps since training began, including earlier runs, and number of batches in the open aggregation
// window.
struct OptimizerSteps {
  std::int64_t made = 0;
  std::int64_t open_batches = 0;
};
OptimizerSteps optimizer_steps(TrialContext& context);

// Replaces the state, before the first batch. ConfigError: a tensor of a parameter is missing or has another shape.
void replace_optimizer_state(TrialContext& context, const std::map<std::string, ParameterState>& state);

// For an optimizer that is not the engine's: updates only keep the averaged gradients and do not change the parameters.
// ConfigError with options that need the engine's updates.
class AveragedGradients {
 public:
  explicit AveragedGradients(TrialContext& context);
  // Returns true if there was an update since the last call; false while batches are aggregated.
  bool take_updated();
  // Returns the gradients by parameter name, always in the same tensors. Collective at the first call.
  const std::map<std::string, at::Tensor>& gradients();
  // Sets the learning rate that metrics.jsonl has, instead of 0.
  void show_rate(LrSchedule rate) { *rate_ = std::move(rate); }

 private:
  TrialContext& context_;
  std::shared_ptr<bool> updated_ = std::make_shared<bool>(false);
  std::shared_ptr<LrSchedule> rate_ = std::make_shared<LrSchedule>([](std::int64_t) { return 0.0; });
  std::map<std::string, at::Tensor> gradients_;
};

}  // namespace dtrain::python
