// Picks how gradients are exchanged and applied: compressed, replicated or sharded. If the experiment leaves the choice
// between the last two open, both take turns until one is measured as faster (TurnComparison). A model that writes its
// parameters itself ends the comparison. With sharded updates gradients may be sharded, too (GradientSharding).
// Training thread; everything but the accessors is collective.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "choice/turn_comparison.h"
#include "device/steps_in_flight.h"
#include "dtrain/config/optimizations.h"
#include "exchange/fusion.h"
#include "exchange/gradient_exchange.h"
#include "exchange/gradient_strategy.h"
#include "exchange/window_scale.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "run_services.h"
#include "strategies/gradient_sharding.h"
#include "strategies/strategy_report.h"

namespace dtrain::train {

struct StrategyOptions {
  config::ShardedOptimizer sharded = config::ShardedOptimizer::kAuto;
  comm::Compression compression;
  std::uint64_t seed = 0;
  config::ShardedGradients gradients = config::ShardedGradients::kAuto;  // kOn only where `sharded` is kOn
};

// True if updates can be sharded in a run with these options.
bool may_shard(const StrategyOptions& options, int world_size);

class StrategyPicker {
 public:
  // The references outlive it. `step_is_settled`: false while another comparison of two ways to compute a step runs.
  StrategyPicker(const RunServices& run, FlatParameters& parameters, FlatOptimizer& optimizer,
                 GradientExchange& exchange, Fusion& fusion, WindowScale& scale, StepsInFlight& in_flight,
                 const StrategyOptions& options, std::function<bool()> step_is_settled);
  ~StrategyPicker();
  StrategyPicker(const StrategyPicker&) = delete;
  StrategyPicker& operator=(const StrategyPicker&) = delete;

  GradientStrategy& strategy() { return *strategy_; }
  const GradientStrategy& strategy() const { return *strategy_; }
  bool may_shard() const;
  bool is_compressed() const { return !std::holds_alternative<comm::NoCompression>(options_.compression); }
  // True if the strategy is final.
  bool settled() const { return !comparison_; }

  // Called around each batch. `stepped`: an optimizer step ended it; the next strategy is picked then.
  void begin_batch();
  void end_batch(bool stepped, std::int64_t batch);
  // To be called between windows after fusion has formed new buckets.
  void use_new_plan();

  // To be called before an update if the model has written this parameter. AgreedError if the ranks share parameters.
  void check_write(const std::string& parameter) const;
  // To be called after that update: updates stay replicated.
  void stop_sharding(const std::string& parameter);

 private:
  std::unique_ptr<GradientStrategy> make(bool sharded);
  void use(bool sharded);
  void end_turn(std::int64_t batch);
  void write_choice();

  const RunServices& run_;
  FlatParameters& parameters_;
  FlatOptimizer& optimizer_;
  GradientExchange& exchange_;
  Fusion& fusion_;
  WindowScale& scale_;
  StepsInFlight& in_flight_;
  const StrategyOptions options_;
  const std::function<bool()> step_is_settled_;
  std::unique_ptr<GradientStrategy> strategy_;
  GradientSharding gradients_;
  std::optional<TurnComparison> comparison_;  // set while it goes on
  StrategyFacts measured_;                    // the results of the comparison only
  Nanoseconds batch_began_{0};
  Nanoseconds window_time_{0};  // time of the ended batches of the open window, without their loading
};

}  // namespace dtrain::train
