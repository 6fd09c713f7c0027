#include "step/step_mode.h"

#include "step/alone_mode.h"
#include "step/exchange_mode.h"
#include "step/local_mode.h"

namespace dtrain::train {

std::unique_ptr<StepMode> make_mode(const StepParts& parts, const StepOptions& options) {
  switch (mode_of(options)) {
    case Mode::kAlone:
      return std::make_unique<AloneMode>(parts, options.strategy.sharded == config::ShardedOptimizer::kOn);
    case Mode::kLocal:
      return std::make_unique<LocalMode>(parts, *options.local_sgd, options.strategy.seed);
    case Mode::kExchange:
      break;
  }
  return std::make_unique<ExchangeMode>(parts, options.strategy);
}

}  // namespace dtrain::train
