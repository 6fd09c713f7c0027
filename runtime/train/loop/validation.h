// Evaluates the model over the validation set, every sample once over all ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "device/device_feed.h"
#include "device/steps_in_flight.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/trial.h"
#include "loop/loader.h"
#include "loop/metrics.h"
#include "state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

// True if a metric's value becomes the best so far. A value that is not a number never does.
bool is_better(double value, const std::optional<double>& best, bool smaller_is_better);

// Throws Error if a name is both among metrics that `function` has returned and among those logged meanwhile.
void refuse_both(const Metrics& returned, const Metrics& logged, const char* function);

class Validation {
 public:
  // `stopping_metric`: the metric of early stopping; empty: none.
  Validation(Trial& trial, TrialContext& context, rank::RankSession& session, TrainingStep& step,
             std::string stopping_metric);

  struct Result {
    std::optional<double> metric;  // searcher.metric's value, where the experiment names one
    bool best = false;             // no validation before had a better one
    bool among_best = false;       // fewer than checkpoint_storage.save_trial_best validations before had a better one
    std::map<std::string, double> metrics;  // all of them
  };
  // Validates the average of the weights, if there is one (`optimizations.ema`). Rank 0's buffers (running statistics)
  // are used on every rank. Metrics are reduced by MetricReducer and written to metrics.jsonl. Does nothing (and
  // returns nothing) for a trial without a validation loader, and after a batch that has been validated. Collective;
  // the same on all ranks.
  std::optional<Result> run(std::int64_t batch, std::int64_t epoch);

  // Writes the model's outputs for the whole validation data to `path`, in the order of the data, with the weights as
  // in run(). With a loader of the trial's own, the order is that of its batches: in each round those of the ranks, in
  // rank order. Only with data. Collective.
  void predict(const std::filesystem::path& path, std::int64_t batch, std::int64_t epoch);

  // Evaluates one batch to see that searcher.metric and the metric of early stopping are there, before hours are spent
  // on training: AgreedError if not. Leaves nothing behind. If no rank has a batch to evaluate, run() finds out.
  void check_metric();
  bool has_data() const { return loader_ != nullptr; }
  void visit(StateVisitor& visitor);
  // Makes the next value the best one, whatever the values before.
  void forget_best() {
    best_.reset();
    next_best_.clear();
  }

 private:
  // Calls `visit` for each of this rank's batches, on the device, with the weights to be validated. Collective.
  void each_batch(std::int64_t batch, const std::function<void(const Batch&)>& visit);
  // Returns what the trial predicts. Error unless it has a row for each sample.
  at::Tensor predicted(const Batch& batch);
  // With virtual ranks: what the trial predicts for this rank's part of each batch of all ranks. Collective.
  std::vector<at::Tensor> predicted_by_rounds(std::int64_t batch);
  // Evaluates without gradients, in the types of training. `logged` gets the metrics that the trial has logged.
  Metrics evaluate(const Batch& batch, Metrics& logged);
  // Calls `visit` for what the loader has of the current logical rank.
  void visit_part(const std::function<void(const Batch&)>& visit);
  // Reduces the metrics over all ranks. Collective.
  ReducedMetrics reduce();
  // Adds the metrics of context.add_metric(). Collective.
  void add_metrics_of_all(ReducedMetrics& reduced, std::int64_t batch);
  void require_metrics(const std::vector<std::string>& names) const;

  Result judge(const ReducedMetrics& reduced);
  // Notes a value of searcher.metric, of which `places` are kept besides the best one. Returns true if it is kept.
  bool insert(double value, bool best, std::size_t places);
  void report(const ReducedMetrics& reduced, const Result& result, std::int64_t batch, std::int64_t epoch);

  Trial& trial_;
  TrialContext& context_;
  rank::RankSession& session_;
  TrainingStep& step_;
  Loader loader_;
  SkippedSamples skipped_;
  DeviceFeed feed_;
  const std::string stopping_metric_;
  StepsInFlight in_flight_;             // bounds the host's lead, and memory for its batches, here too
  std::vector<MetricReducer> metrics_;  // of each logical rank of this rank
  std::int64_t last_batch_ = -1;
  std::optional<double> best_;     // value of searcher.metric
  std::vector<double> next_best_;  // the next best values whose checkpoints are kept, the best first
};

// Sets evaluation mode for a while, and then restores the modes that a model's modules had. train() on the model would
// not do, because it sets every part, also a frozen batch norm that the trial has put into evaluation mode.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) {
    modes_.emplace_back(&model, model.is_training());
    for (const auto& module : model.modules(/*include_self=*/false)) {
      modes_.emplace_back(module.get(), module->is_training());
    }
    model.eval();
  }
  ~EvaluationMode() {
    // A module's train() sets its parts too, so the module comes before its parts.
    for (const auto& [module, training] : modes_) {
      if (module->is_training() != training) module->train(training);
    }
  }
  EvaluationMode& operator=(EvaluationMode&&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

}  // namespace dtrain::train
