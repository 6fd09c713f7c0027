// The data-parallel engine: from a wrapped model to one optimizer step after another. docs/architecture.md tells the
// life of one step. Used by the training thread alone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/config/optimizations.h"
#include "dtrain/profile/recorder.h"
#include "dtrain/profile/trace_window.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/trial.h"
#include "exchange/collective_log.h"
#include "exchange/fusion.h"
#include "exchange/gradient_exchange.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/parameter_watch.h"
#include "step/non_finite.h"
#include "strategies/compressed.h"
#include "strategies/local_steps.h"
#include "strategies/sharded.h"
#include "strategies/strategy_trial.h"

namespace dtrain::train {

struct EngineOptions {
  int aggregation_frequency = 1;
  bool average_aggregated_gradients = true;
  FusionOptions fusion;
  double max_gradient_norm = 0;  // 0: no clipping
  config::Compression compression;
  std::optional<config::LocalSgd> local_sgd;
  std::uint64_t seed = 0;
  config::ShardedOptimizer sharded = config::ShardedOptimizer::kAuto;
  bool stop_on_non_finite = false;
  // Once all have the same model, this rank says nothing to the others and waits for none (`--mock comm`). What below
  // is collective then is not.
  bool alone = false;
};

class Engine {
 public:
  // Collective: compares the models, broadcasts rank 0's values, allocates the gradients.
  Engine(TrialContext& context, run::RankSession& session, const EngineOptions& options);
  ~Engine();

  // The ranks' word on one round (a batch of each rank that still has one): how many have a batch, and whether
  // anyone wants to stop.
  struct Round {
    std::int64_t active = 0;
    bool stop = false;
  };

  // Every round, before the batch: tells the others; rank 0 also of a trace window it wants. Never waits.
  void announce(bool has_batch, bool stop, const std::optional<profile::TraceWindow>& trace = std::nullopt);
  // Waits for what all ranks announced for the round last announced.
  Round agree();

  // Whether the current round is the one that exchanges gradients.
  bool exchange_due() const { return rounds_in_window_ + 1 == options_.aggregation_frequency; }
  // Around train_batch() (or instead of it, for a rank without a batch).
  void begin_batch();
  void backward(const at::Tensor& loss);
  // Ends the round: exchanges and steps where that is due. True after an optimizer step.
  bool end_batch();
  // Exchanges and applies what is left of an unfinished window, with its real number of batches. True if there was one.
  bool flush();
  // Now and then: Error naming a parameter that training does not know.
  void check_members() const { watch_->check_members(); }

  // With local steps: makes the ranks meet if they have stepped since they last did. Collective.
  void synchronise();
  // Rank 0: brings plan.json up to date about losses that were not finite.
  void tell_non_finite() { non_finite_.tell(); }
  // Training is over: says what compression has brought, and what was not finite. Collective.
  void report();

  // In how many rounds at most, the announcing one included, all ranks know what one of them announced.
  std::int64_t announcement_rounds() const;
  // The trace window that rank 0 announced, once.
  std::optional<profile::TraceWindow> take_trace_window() { return std::exchange(trace_window_, std::nullopt); }

  // Whether all ranks had the same parameters after the last round: always, but between the meetings of local steps.
  bool synchronised() const { return !local_ || inner_steps_ == 0; }
  // Whether a rank has asked to stop. All ranks agree on it in rounds after which they are synchronised.
  bool stop_seen() const { return stop_seen_ && synchronised(); }
  const FlatParameters& parameters() const { return *parameters_; }
  const Fusion& fusion() const { return *fusion_; }
  const FlatOptimizer& optimizer() const { return *optimizer_; }

 private:
  struct Announcement {
    // Batches, stop wishes, ranks that have had a batch since the ranks last met; rank 0's trace window (0: none); what
    // NonFinite says of the batch before, which is number `batch`.
    std::int64_t values[5 + NonFinite::kWords];
    std::int64_t batch = 0;
    comm::Work work;
  };
  void settle_announcements(std::size_t keep = 0);  // all but the last `keep`
  void exchange_and_step();
  // What brings gradients that were divided by a full window to the mean of the batches that this one has had. Waits
  // for the word on the last round.
  double window_correction();
  void step_alone(int rounds);
  std::int64_t local_lag() const;  // rounds until what was announced is read
  void end_local_round(bool stepped);
  void adapt_fusion();
  bool may_shard() const;
  void use_strategy(bool sharded);
  void try_strategies();
  void tell_strategy();
  void report_compression();
  void report_non_finite();
  std::vector<std::size_t> agree_on_written(std::vector<std::uint8_t> mine);
  void stop_sharding(const std::string& written);
  void make_alike(std::span<const std::size_t> parameters);
  void install_hooks();
  void remove_hooks();

  run::RankSession& session_;
  EngineOptions options_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  CollectiveLog log_;
  NonFinite non_finite_;
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<FlatParameters> parameters_;
  std::unique_ptr<ParameterWatch> watch_;
  std::unique_ptr<Fusion> fusion_;
  std::unique_ptr<FlatOptimizer> optimizer_;
  std::unique_ptr<GradientStrategy> strategy_;
  Compressed* compressed_ = nullptr;  // strategy_, where it is one
  Sharded* sharded_ = nullptr;        // the same
  std::optional<StrategyTrial> trial_;
  std::unique_ptr<LocalSteps> local_;
  std::unique_ptr<GradientExchange> exchange_;
  std::deque<Announcement> announcements_;
  Round last_round_;
  std::int64_t window_batches_ = 0;  // of all ranks, in the open window
  int rounds_in_window_ = 0;
  int exchanged_rounds_ = 0;  // of the window whose gradients are being exchanged
  bool stop_seen_ = false;
  bool said_different_ = false;  // that the model writes other values into its parameters on other ranks
  std::optional<profile::TraceWindow> trace_window_;
  bool in_batch_ = false;
  Nanoseconds batch_began_{0};
  Nanoseconds window_time_{0};  // of the batches of the open window, without their loading
  // Of local steps.
  std::int64_t rounds_ = 0;                 // announced
  std::int64_t batches_ = 0;                // begun; of all ranks alike
  std::optional<std::int64_t> stop_round_;  // in which a rank first asked to stop
  std::int64_t own_batches_ = 0;            // of this rank, in the open window; also when alone
  int inner_steps_ = 0;                     // since the ranks last met
  bool took_part_ = false;                  // had a batch since then
  std::int64_t took_part_ranks_ = 0;        // how many have, as of the last round settled
};

}  // namespace dtrain::train
