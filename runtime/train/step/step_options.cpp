#include "step/step_options.h"

#include <string>

#include "dtrain/base/error.h"

namespace dtrain::train {

Mode mode_of(const StepOptions& options) {
  if (options.alone) return Mode::kAlone;
  if (options.ranks.virtuals) return Mode::kVirtual;
  return options.local_sgd ? Mode::kLocal : Mode::kExchange;
}

void check(const StepOptions& options, const comm::World& world, bool on_device) {
  // Ranks of one host share one copy of the state, except on GPUs.
  const bool divides_state = world.size > 1 && (on_device || world.local_size != world.size);
  if (options.fusion.auto_tune && divides_state && options.strategy.sharded == config::ShardedOptimizer::kOn) {
    throw ConfigError(std::string("auto_tune_tensor_fusion is not supported yet with sharded_optimizer: true ") +
                          (on_device ? "on GPUs" : "over several hosts") +
                          ", where each change of buckets would have to exchange the optimizer's state",
                      on_device ? "leave sharded_optimizer at auto, or switch the tuner off"
                                : "leave sharded_optimizer and sharded_gradients at auto, or switch the tuner off");
  }
}

ParameterTypes parameter_types(const StepOptions& options) {
  if (options.precision == config::Precision::kFloat32) return {};
  if (options.precision == config::Precision::kFloat16) return {.shadow = at::kHalf};
  if (options.precision == config::Precision::kBfloat16) return {.shadow = at::kBFloat16};
  // Codecs take float32 gradients.
  const bool compressed = !std::holds_alternative<comm::NoCompression>(options.strategy.compression);
  return {.bfloat16 = true, .gradients = !compressed};
}

bool may_keep_narrow_gradients(const StepOptions& options, const comm::World& world) {
  return options.precision == config::Precision::kBfloat16 && world.size == 1 && mode_of(options) == Mode::kExchange &&
         options.aggregation_frequency == 1 && options.max_gradient_norm == 0 && options.max_gradient_value == 0 &&
         !options.clips_groups && std::holds_alternative<comm::NoCompression>(options.strategy.compression);
}

FusionOptions fusion_options(const StepOptions& options, int world_size) {
  FusionOptions fusion = options.fusion;
  fusion.aggregation_frequency = options.aggregation_frequency;
  fusion.compression = options.strategy.compression;
  fusion.sharded = mode_of(options) == Mode::kExchange && may_shard(options.strategy, world_size) &&
                   options.strategy.sharded == config::ShardedOptimizer::kOn;
  return fusion;
}

}  // namespace dtrain::train
