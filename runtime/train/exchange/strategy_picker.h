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
#include <vector>

#include "device/steps_in_flight.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/fusion_plan.h"
#include "dtrain/config/optimizations.h"
#include "exchange/autotune.h"
#include "exchange/fusion.h"
#include "exchange/gradient_exchange.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "run_services.h"

namespace dtrain::train {

struct StrategyTurn {
  bool sharded = false;
  std::int64_t first_batch = 0, last_batch = 0;
};

// The gradients of one rank (of rank 0).
struct GradientFacts {
  bool decided = false;                            // otherwise steps with whole and sharded gradients are to take turns
  bool sharded = false;                            // after the exchange a rank keeps only gradients of its parts …
  bool short_of_memory = false;                    // … because a host was short of memory
  std::int64_t bytes = 0, kept_bytes = 0;          // in backward; between the update and the next backward
  std::optional<double> whole_ms{}, sharded_ms{};  // of a step, if both were tried
};

struct StrategyFacts {
  bool sharded = false;
  bool one_copy = false;                              // sharded, and the ranks of a host share one copy
  bool on_gpus = false;                               // each rank has its own parameters in a GPU's memory
  int world_size = 1, ranks_of_host = 1;              // ranks_of_host: of rank 0's host
  std::int64_t parameter_bytes = 0, state_bytes = 0;  // bytes of the model and its optimizer, once
  std::optional<double> replicated_ms, sharded_ms;    // of a step, if both were tried …
  std::vector<StrategyTurn> turns;                    // … and the batches of each try
  std::optional<GradientFacts> gradients{};
};

// Describes the memory and time of a chosen strategy, for plan.json, the log and the summary. Pure. Returns
// {"strategy", "one_copy", "host_bytes": {…}, "replicated_host_bytes": {…}, "replicated_ms", "sharded_ms",
// "turns": [{"strategy", "first_batch", "last_batch"}], "gradients": {"sharded", "bytes", "kept_bytes",
// "short_of_memory", "whole_ms", "sharded_ms"}, "text"}.
Json describe_strategy(const StrategyFacts& facts);

// Decides if a rank keeps, after the exchange, only the gradients of its own updates (optimizations.sharded_gradients,
// ZeRO-2). The memory of the others goes back to the kernel, and the next backward gets new pages for it, which takes
// time. The weights have the same bits either way, so the decision may depend on timing: if the experiment leaves it
// open, steps with whole and with sharded gradients take turns (TurnComparison), unless a host is short of memory. On
// one host, where ranks share the parameters already, the experiment has to ask for it.
//
// Training thread.
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
  StrategyPicker& operator=(StrategyPicker&&) = delete;

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
