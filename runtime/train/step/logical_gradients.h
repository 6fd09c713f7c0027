// The gradients of logical ranks on their way to an update (reproducibility.virtual_ranks), in windows of one or
// several rounds. Without compression the sum over all logical ranks is made in each round, so that an open window is
// the same on all ranks. With compression the gradients of a logical rank add up in the window, and are compressed at
// its end: error feedback and a codec's other state belong to the logical rank. Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dtrain/comm/fusion_plan.h"
#include "dtrain/rank/logical_ranks.h"
#include "exchange/gradient_strategy.h"
#include "exchange/strategy_picker.h"
#include "model/flat_parameters.h"
#include "run_services.h"
#include "state_visitor.h"
#include "step/aggregation_window.h"

namespace dtrain::train {

class LogicalGradients {
 public:
  virtual ~LogicalGradients() = default;

  // To be called for each logical rank of this rank, in their order, when its gradients of a round are complete.
  // Another one's may then take their place.
  virtual void add(int logical_rank) = 0;
  // To be called behind the last one of a round. Collective.
  virtual void end_round() = 0;
  // Makes the gradients those of the window's update, up to the factor that it returns. `used`: for each parameter 1 if
  // any logical rank has used it in this window. Collective.
  virtual double finish(std::span<const std::uint8_t> used) = 0;

  // Exchanges the gradients of this rank's last logical rank during their backward, which takes the place of add() for
  // it: they are the sums over all logical ranks when their works are complete. Null: add() and end_round() do all.
  virtual GradientStrategy* in_backward() { return nullptr; }
  // To be called between rounds after fusion has formed new buckets, which outlive their use.
  virtual void set_plan(const comm::FusionPlan& /*plan*/) {}

  // Visits what the ranks have in common of an open window.
  virtual void visit(StateVisitor& visitor) = 0;
  // Visits what belongs to the logical rank of this number among those of this rank.
  virtual void visit_logical_rank(std::size_t index, StateVisitor& visitor) = 0;
  // To be called when training is over. Collective.
  virtual void report() = 0;
};

// The references outlive the gradients. `settled_steps`: as in CompressorOptions.
struct LogicalGradientParts {
  const RunServices& run;
  const FlatParameters& parameters;
  const AggregationWindow& window;
  const comm::FusionPlan& plan;
  const rank::LogicalRanks ranks;
  std::int64_t settled_steps = 0;
};
// Collective.
std::unique_ptr<LogicalGradients> make_logical_gradients(const LogicalGradientParts& parts,
                                                         const StrategyOptions& options);

}  // namespace dtrain::train
