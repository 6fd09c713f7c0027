// Decides if a rank keeps, after the exchange, only the gradients of its own updates (optimizations.sharded_gradients,
// ZeRO-2). The memory of the others goes back to the kernel, and the next backward gets new pages for it, which takes
// time. The weights have the same bits either way, so the decision may depend on timing: if the experiment leaves it
// open, steps with whole and with sharded gradients take turns (TurnComparison), unless a host is short of memory. On
// one host, where ranks share the parameters already, the experiment has to ask for it.
//
// Training thread.
#pragma once

#include <cstdint>
#include <optional>

#include "choice/turn_comparison.h"
#include "dtrain/comm/fusion_plan.h"
#include "dtrain/config/optimizations.h"
#include "exchange/gradient_exchange.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_parameters.h"
#include "run_services.h"
#include "strategies/strategy_report.h"

namespace dtrain::train {

class GradientSharding {
 public:
  // The references outlive this object. Between windows.
  GradientSharding(const RunServices& run, FlatParameters& parameters, GradientExchange& exchange,
                   config::ShardedGradients wanted);

  // Called after every optimizer step with the final strategy and final buckets, with the last batch and the time of
  // this rank's window, without its batches' loading. Collective. True when the decision has just been made.
  bool end_step(const GradientStrategy& strategy, const comm::FusionPlan& plan, std::int64_t batch,
                double milliseconds);
  // Returns the effect of the decision with these buckets.
  GradientFacts facts(const GradientStrategy& strategy, const comm::FusionPlan& plan) const;

 private:
  void begin(std::int64_t spare);

  const RunServices& run_;
  FlatParameters& parameters_;
  GradientExchange& exchange_;
  bool decided_ = false;
  bool sharded_ = false;
  bool short_of_memory_ = false;
  std::optional<TurnComparison> comparison_;  // set once it has begun
};

}  // namespace dtrain::train
