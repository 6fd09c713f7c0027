// The loop over batches. Read it beside "The life of one step" in runtime/train/README.md. Training thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "device/device_feed.h"
#include "device/device_profile.h"
#include "device/sync_debug.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/trial.h"
#include "flops/counted_batches.h"
#include "graph/step_graph.h"
#include "loop/metric_reducer.h"
#include "loop/progress_meter.h"
#include "loop/random_seed.h"
#include "loop/validation.h"
#include "step/training_step.h"
#include "tracing/deep_window.h"

namespace dtrain::train {

class TrainingLoop {
 public:
  // `save` is called once on every rank when training is over. It comes before the last validation, so that an error
  // there does not lose the weights. `graph`: may be null.
  TrainingLoop(Trial& trial, TrialContext& context, run::RankSession& session, TrainingStep& step,
               std::unique_ptr<StepGraph> graph, std::function<void()> save);
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  struct End {
    bool stopped = false;  // early, because some rank was asked to stop
    bool saved = false;    // a checkpoint of where it stopped is durable
  };
  // Trains up to the experiment's max_length, from the session's checkpoint on if it has one. Collective.
  End run();

 private:
  enum class Outcome { kGoOn, kDone, kStopped };
  // Visits the position of the training and the state of its step. Between two batches. Collective.
  void visit(StateVisitor& visitor);
  void resume();
  void begin_anew();
  Outcome run_round();
  // The periodic work after a batch: metrics, validation, a checkpoint.
  void do_what_is_due(bool stepped);
  Validation::Result validate();
  void take_checkpoint(const char* reason, const Validation::Result& validated, bool may_wait, bool last = false);
  Outcome end_of_epoch(const Round& round);
  // A step with the batch that is on the device, or without one. True: the optimizer has stepped.
  bool step_eagerly(const std::optional<Batch>& batch);
  bool step_as_graph(const Batch& batch);
  void train_batch(const Batch& batch);
  // train_batch() of the trial.
  Metrics call_trial(const Batch& batch);
  // Of batch and epoch that come next.
  void seed(Draws draws);
  void record_loader(const Batch& batch);
  // After the last batch, once: applies the gradients of an open window, reduces metrics, validates, takes the last
  // checkpoint. A run that is stopped takes its checkpoint first, and so does a run that ends with an open window. So
  // if it goes on, it does so as if it had not ended.
  void conclude(bool stopped);
  void keep_metrics(Metrics metrics, std::int64_t samples);
  // Starts to copy the sums of due metrics to the host. Later, in the same round on every rank, all ranks reduce the
  // sums that have arrived.
  void begin_training_metrics();
  void finish_training_metrics(bool all = false);
  void find_lengths();
  // records_per_epoch is for sources that do not know their length.
  void warn_of_unused_length() const;
  void start_epoch(std::int64_t epoch);
  bool epoch_is_full() const;

  Trial& trial_;
  TrialContext& context_;
  run::RankSession& session_;
  TrainingStep& step_;
  profile::Recorder& recorder_;
  const config::Experiment& experiment_;
  Loader loader_;
  DeviceFeed feed_;
  SyncDebug sync_debug_;
  DeviceProfile device_profile_;
  Validation validation_;
  MetricReducer metrics_;
  std::function<void()> save_;
  ProgressMeter progress_;
  std::unique_ptr<StepGraph> graph_;  // null: no step is taken as a graph
  DeepWindow deep_window_;
  CountedBatches counted_batches_;
  std::vector<std::pair<Metrics, std::int64_t>> unread_metrics_;  // on the host, with their samples; read when due
  struct DueMetrics {
    std::int64_t batch = 0, epoch = 0, optimizer_steps = 0;
    double learning_rate = 0;
    MetricReducer::Sums sums;
  };
  std::deque<DueMetrics> due_metrics_;  // oldest first

  std::int64_t global_batch_ = 0;                  // of all ranks, in samples
  std::optional<std::int64_t> batches_per_epoch_;  // the most of any rank; empty: train until every source ends
  std::optional<std::int64_t> total_batches_;      // empty: train until epochs_ are over
  std::int64_t epochs_ = 0;
  std::int64_t validation_period_ = 0;  // batches; 0: only at the end
  std::int64_t checkpoint_period_ = 0;  // batches; 0: none was asked for
  std::int64_t batches_ = 0;            // done, in rounds of all ranks
  std::int64_t epoch_ = 0;
  std::int64_t epoch_batches_ = 0;
  bool concluded_ = false;
  bool due_is_open_ = false;                // the periodic work after the last batch has not been done
  Json facts_;                              // about this run, for runs that go on from its checkpoints
  std::optional<Checkpoints> checkpoints_;  // none in mock runs
  bool checkpoints_ready_ = false;          // Checkpoints::make_ready() was called
  bool saved_ = false;                      // the last one is durable
};

}  // namespace dtrain::train
