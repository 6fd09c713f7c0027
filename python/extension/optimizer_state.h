// The state of the engine's step for Python: what its updates remember of each parameter, and averaged gradients for
// optimizers of Python that update by themselves. Collective, between two batches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "dtrain/train/trial.h"

namespace dtrain::python {

// What an optimizer remembers of one parameter.
struct ParameterState {
  std::int64_t updates = 0;                   // so far
  std::map<std::string, at::Tensor> tensors;  // by the engine's names: exp_avg, momentum
};

// By the parameter's name. `whole`: complete copies on every rank; otherwise the engine's own tensors, which hold what
// this rank keeps up to date.
std::map<std::string, ParameterState> read_optimizer_state(TrialContext& context, bool whole);

// How many steps the optimizer has made since training began, in the runs before this one, too; and how many batches of
// an aggregation window that is open.
struct OptimizerSteps {
  std::int64_t made = 0;
  std::int64_t open_batches = 0;
};
OptimizerSteps optimizer_steps(TrialContext& context);

// Replaces it, before the first batch. ConfigError: a parameter, or a tensor of one, is missing or has another shape.
void replace_optimizer_state(TrialContext& context, const std::map<std::string, ParameterState>& state);

// For an optimizer that is not the engine's: updates only keep the averaged gradients, and leave the parameters as they
// are. ConfigError with options that need the engine's own updates.
class AveragedGradients {
 public:
  explicit AveragedGradients(TrialContext& context);
  // Whether there was an update since the last call: not while batches are aggregated.
  bool take_updated();
  // The gradients by the names of their parameters. The tensors stay the same ones. Collective at the first call.
  const std::map<std::string, at::Tensor>& gradients();
  // What metrics.jsonl has for the learning rate, in the place of 0.
  void show_rate(LrSchedule rate) { *rate_ = std::move(rate); }

 private:
  TrialContext& context_;
  std::shared_ptr<bool> updated_ = std::make_shared<bool>(false);
  std::shared_ptr<LrSchedule> rate_ = std::make_shared<LrSchedule>([](std::int64_t) { return 0.0; });
  std::map<std::string, at::Tensor> gradients_;
};

}  // namespace dtrain::python
