// The data-parallel engine: from a wrapped model to one optimizer step after another. docs/architecture.md tells the
// life of one step. Used by the training thread alone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "collective_log.h"
#include "dtrain/comm/fusion_plan.h"
#include "dtrain/profile/recorder.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/trial.h"
#include "flat_optimizer.h"
#include "flat_parameters.h"
#include "gradient_exchange.h"
#include "gradient_strategy.h"

namespace dtrain::train {

struct EngineOptions {
  int aggregation_frequency = 1;
  bool average_aggregated_gradients = true;
  std::int64_t fusion_threshold_bytes = 64ll << 20;
  double max_gradient_norm = 0;  // 0: no clipping
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

  // Every round, before the batch: tells the others. Never waits.
  void announce(bool has_batch, bool stop);
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

  // Sums of the rounds announced and not yet agreed on; a stop wish among them.
  bool stop_seen() const { return stop_seen_; }
  const FlatParameters& parameters() const { return *parameters_; }
  const comm::FusionPlan& plan() const { return plan_; }
  const FlatOptimizer& optimizer() const { return *optimizer_; }

 private:
  struct Announcement {
    std::int64_t values[2];  // batches, stop wishes
    comm::Work work;
  };
  void settle_announcements();
  void exchange_and_step(int rounds);
  void install_hooks();
  void remove_hooks();

  run::RankSession& session_;
  EngineOptions options_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  CollectiveLog log_;
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<FlatParameters> parameters_;
  comm::FusionPlan plan_;
  std::unique_ptr<GradientStrategy> strategy_;
  std::unique_ptr<GradientExchange> exchange_;
  std::unique_ptr<FlatOptimizer> optimizer_;
  std::deque<Announcement> announcements_;
  Round last_round_;
  std::int64_t window_batches_ = 0;  // of all ranks, in the open window
  int rounds_in_window_ = 0;
  bool stop_seen_ = false;
  bool in_batch_ = false;
};

}  // namespace dtrain::train
