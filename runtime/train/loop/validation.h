// Evaluates the model over the validation set, every sample once over all ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "device/device_feed.h"
#include "device/steps_in_flight.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/trial.h"
#include "loop/metric_reducer.h"
#include "state/state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

// Whether a metric's value becomes the best so far. One that is not a number never does.
bool is_better(double value, const std::optional<double>& best, bool smaller_is_better);

class Validation {
 public:
  Validation(Trial& trial, TrialContext& context, run::RankSession& session, TrainingStep& step);

  struct Result {
    std::optional<double> metric;  // searcher.metric's value, where the experiment names one
    bool best = false;             // no validation before had a better one
  };
  // Of the average of the weights, where there is one (`optimizations.ema`). Rank 0's buffers (running statistics) are
  // used on every rank. Metrics are means over all samples, written to
  // metrics.jsonl. Does nothing (and gives nothing) for a trial without a validation loader, and after a batch that has
  // been validated. Collective; the same on all ranks.
  std::optional<Result> run(std::int64_t batch, std::int64_t epoch);

  // Evaluates one batch to see that searcher.metric is there, before hours are spent on training: AgreedError. Leaves
  // nothing behind. Where no rank has a batch to evaluate, run() finds out.
  void check_metric();
  void visit(StateVisitor& visitor);
  // The next value becomes the best one, whatever was before.
  void forget_best() { best_.reset(); }

 private:
  // Without gradients, in the types of training.
  Metrics evaluate(const Batch& batch);
  void require_metric(const std::vector<std::string>& names) const;

  Result judge(const ReducedMetrics& reduced);
  void report(const ReducedMetrics& reduced, const Result& result, std::int64_t batch, std::int64_t epoch);

  Trial& trial_;
  TrialContext& context_;
  run::RankSession& session_;
  TrainingStep& step_;
  Loader loader_;
  DeviceFeed feed_;
  StepsInFlight in_flight_;  // so that the host, and memory for its batches, is bounded here too
  MetricReducer metrics_;
  std::int64_t last_batch_ = -1;
  std::optional<double> best_;  // of searcher.metric
};

}  // namespace dtrain::train
