// The experiment's options of the training step. Plain values.
#pragma once

#include <optional>

#include "dtrain/comm/control.h"
#include "dtrain/config/optimizations.h"
#include "dtrain/rank/logical_ranks.h"
#include "dtrain/train/loss_scaling.h"
#include "exchange/fusion.h"
#include "exchange/strategy_picker.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

struct StepOptions {
  int aggregation_frequency = 1;
  bool average_aggregated_gradients = true;
  double max_gradient_norm = 0;   // 0: no clipping
  double max_gradient_value = 0;  // 0: no clipping; at most one of the two is set
  bool clips_groups = false;      // some parameter group has a limit of its own
  double ema = 0;                 // the decay of the average of the weights; 0: none
  FusionOptions fusion;           // without the fields that fusion_options() adds
  StrategyOptions strategy;
  std::optional<config::LocalSgd> local_sgd;
  bool stop_on_non_finite = false;
  config::Precision precision = config::Precision::kFloat32;
  LossScaling loss_scaling;  // used with float16
  config::MemoryFormat memory_format = config::MemoryFormat::kContiguous;
  rank::LogicalRanks ranks;
  // The state of a checkpoint replaces all values of the model before they are used.
  bool values_follow = false;
  // That state is one in memory, which ranks of the same program have left: what they had found out of it holds.
  bool same_program = false;
  // Once all ranks have the same model, this rank trains by itself (`--mock comm`), and nothing is collective.
  bool alone = false;
};

enum class Mode { kExchange, kLocal, kAlone, kVirtual };
Mode mode_of(const StepOptions& options);

// Throws ConfigError for options that do not go together. `on_device`: the parameters lie on GPUs.
void check(const StepOptions& options, const comm::World& world, bool on_device);
// Returns the types in which the model computes, and those of its gradients.
ParameterTypes parameter_types(const StepOptions& options);
// True if FlatParameters::keep_narrow_gradient() is allowed: only the update reads the gradients of a batch.
bool may_keep_narrow_gradients(const StepOptions& options, const comm::World& world);
FusionOptions fusion_options(const StepOptions& options, int world_size);

}  // namespace dtrain::train
