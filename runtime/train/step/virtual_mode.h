// Steps of virtual ranks: this rank computes the gradients of several logical ranks one after the other, and all sums
// follow a tree over the logical ranks. Every rank updates all parameters, or its part of them. Training thread.
#pragma once

#include <memory>

#include "dtrain/rank/logical_ranks.h"
#include "exchange/strategy_picker.h"
#include "step/step_mode.h"

namespace dtrain::train {

// `parts` and `more` outlive the mode. Collective.
std::unique_ptr<StepMode> make_virtual_mode(const StepParts& parts, const ExchangeParts& more,
                                            const rank::LogicalRanks& ranks, const StrategyOptions& options);

}  // namespace dtrain::train
