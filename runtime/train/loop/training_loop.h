// The loop over batches, described by "The life of one step" in runtime/train/README.md. Training thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "device/device_feed.h"
#include "device/device_profile.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/trial.h"
#include "loop/beside_validation.h"
#include "loop/callbacks.h"
#include "loop/checkpoint_schedule.h"
#include "loop/loader.h"
#include "loop/metrics.h"
#include "loop/patience.h"
#include "loop/progress.h"
#include "loop/random_seed.h"
#include "loop/validation.h"
#include "model/model_tensors.h"
#include "step/step_graph.h"
#include "step/training_step.h"
#include "tracing/deep_window.h"
#include "tracing/flop_counts.h"

namespace dtrain::train {

// Allows context.log() during its lifetime.
class LogScope {
 public:
  explicit LogScope(TrialContext& context) : logged_(context.around_the_loop().logged) { logged_.emplace(); }
  ~LogScope() { logged_.reset(); }
  LogScope& operator=(LogScope&&) = delete;

 private:
  std::optional<Metrics>& logged_;
};

class TrainingLoop {
 public:
  // `save` is called once on every rank when training is over, before the last validation, so that an error there does
  // not lose the weights. `graph`: may be null. `begins_with`: a checkpoint of another run; a run without a checkpoint
  // of its own begins with its training state. Empty: none.
  TrainingLoop(Trial& trial, TrialContext& context, rank::RankSession& session, TrainingStep& step,
               std::unique_ptr<StepGraph> graph, std::function<void()> save, std::filesystem::path begins_with);
  TrainingLoop& operator=(TrainingLoop&&) = delete;

  struct End {
    bool stopped = false;  // early, because a rank was asked to stop
    bool saved = false;    // a checkpoint of where it stopped is durable
  };
  // Trains up to the experiment's max_length, from the session's checkpoint on if it has one: begin(), run_round() as
  // long as the last call has returned kGoOn, end(). Collective.
  enum class Outcome { kGoOn, kDone, kStopped };
  Outcome begin();
  Outcome run_round();
  End end(Outcome outcome);

  // A program that has the loop itself, such as a script in Python, trains its batches with these functions instead of
  // run_round(), which it calls where its data ends. The trial's loader has no batches then (own_batch.cpp).
  //
  // Called before the program reads its `number`-th batch of the epoch (from 0): seeds that batch's random numbers.
  void expect_batch(std::int64_t number);
  // Called before a forward pass that may be trained. `repeated`: how many were opened since the last update.
  void open_batch(std::int64_t repeated);
  // Closes a forward pass that is not trained: the batch does not count.
  void leave_batch();
  // Announces the batch to the other ranks, and runs context.backward(). More calls of backward() may follow.
  void backward(const at::Tensor& loss, const BackwardOptions& options, std::int64_t samples, std::int64_t place);
  // Begins the forward pass of another part of the batch; its backward() adds its samples by add_samples().
  void continue_batch();
  void add_samples(std::int64_t samples);
  // Drops the gradients of the batch, which does not count. Collective.
  void drop_batch();
  // Takes the optimizer's step. `metrics`: as train_batch() returns them. Collective.
  void update(Metrics metrics);
  // Does the periodic work after the batch, such as a checkpoint. Collective.
  Outcome end_batch();
  const Position& position() const { return position_; }

  // After another rank's end has ended an exchange: saves the state of the last batch in memory, if this rank can.
  void save_as_survivor() { checkpoints_.save_as_survivor(); }

 private:
  struct OwnBatch;
  // Visits the position of the training and the state of its step. Between two batches. Collective.
  void visit(StateVisitor& visitor);
  // Returns the trial's own state. ConfigError if there is one with virtual ranks.
  TrialState trial_state();
  void resume();
  // Starts the training data at the checkpoint's place in its epoch. Collective.
  void start_data();
  void begin_anew();
  // One validation with the weights that initial_weights names, and no training. Collective.
  Outcome evaluate();
  // Validates each checkpoint that a training names (BesideValidation), until it has no more. Collective.
  void validate_as_ordered();
  void begin_with_checkpoint();
  // Before the first batch of a new run: validates, or checks that the metrics will be there. Collective.
  void validate_at_beginning();
  // Called around a round, whoever has the loop: begin the round's record; do the periodic work and end the record.
  void begin_record();
  Outcome end_round(std::int64_t samples, bool stepped);
  // Returns this rank's announcement of the round.
  Announcement wishes(bool fits_graph);
  // Does the periodic work after a batch: metrics, validation, a checkpoint.
  void do_what_is_due(bool stepped);
  Outcome end_of_epoch(const Round& round);
  // As run_round(), with virtual ranks: trains the batches of this rank's logical ranks, one after the other.
  Outcome run_virtual_round();
  // Trains the batch of the current logical rank, if it has one. Returns its samples.
  std::int64_t train_logical_rank(std::optional<Batch>& batch);
  // Visits the state that each logical rank has of its own.
  void visit_logical_ranks(StateVisitor& visitor);
  // Ends an epoch that ends with the last batch of the training.
  void end_last_epoch();
  // Takes a step with the batch that is on the device, or without one. Returns true if the optimizer has stepped.
  bool step_eagerly(std::optional<Batch>& batch);
  bool step_as_graph(const Batch& batch);
  // Trains the batch, and counts the samples that the trial adds to it.
  void train_batch(Batch& batch);
  // Returns the factor of a batch's loss with which each sample of the global batch counts the same.
  double share_of(const Batch& batch) const;
  // Calls train_batch() of the trial.
  Metrics call_trial(const Batch& batch);
  // The same; refuses calls that a CUDA graph would not repeat.
  Metrics call_trial_for_graph(const Batch& batch);
  // Seeds the random numbers of the batch or epoch that comes next.
  void seed(Draws draws);
  void record_loader(const Batch& batch);
  // Calls before_batch() of callbacks and trial.
  void prepare_batch(const Batch& batch);
  // Calls after_batch(), and keeps the logged metrics.
  void follow_batch(const Batch& batch);
  // Adds the metrics logged in the batch to its metrics.
  void keep_logged(const Batch& batch);
  // The same beside the training: uses the result of the validation before, and asks for this one. Collective.
  void validate_beside();
  // Waits for the result that is awaited, if one is, and uses it. Collective.
  void accept_validation();
  // Tells the parts of the training that depend on validations of one after this batch.
  void use(const Validation::Result& result, std::int64_t batch);
  // Validates, unless that has been done after this batch. Returns searcher.metric as of this batch.
  std::optional<double> validate();
  // Called once, after the last batch: applies the gradients of an open window, reduces metrics, validates, takes the
  // last checkpoint. A run that is stopped, or that ends with an open window, takes its checkpoint first, so that it
  // can go on as if it had not ended.
  void conclude(bool stopped);
  void start_epoch(std::int64_t epoch);
  bool epoch_is_full() const;

  // Measurements of steps besides their records.
  struct Measured {
    SyncDebug sync_debug;
    DeviceProfile device_profile;
    DeepWindow deep_window;
    CountedBatches counted_batches;
  };

  Trial& trial_;
  TrialContext& context_;
  rank::RankSession& session_;
  TrainingStep& step_;
  Position position_;
  Loader loader_;
  std::string data_position_;  // position in the checkpoint; empty: it has none
  SkippedSamples skipped_;
  DeviceFeed feed_;
  Callbacks callbacks_;
  const std::optional<config::EarlyStopping> stopping_;
  EarlyStop early_stop_;
  Plateau plateau_;
  Validation validation_;
  BesideValidation beside_;
  Lengths lengths_;
  ProgressMeter progress_;
  TrainingMetrics metrics_;
  const std::unique_ptr<StepGraph> graph_;  // null: no step is taken as a graph
  const std::function<void()> save_;
  const std::filesystem::path begins_with_;  // a checkpoint of another run; empty: none
  // Set while that checkpoint is read: true if it is of the same trial.
  std::optional<bool> other_run_has_same_trial_;
  Metrics returned_;              // metrics returned by train_batch(), for the callbacks
  Validation::Result validated_;  // the last result of this process, and the batch before it
  std::int64_t validated_batch_ = -1;
  Measured measured_;
  CheckpointSchedule checkpoints_;
  SharedBuffers shared_buffers_;
  std::shared_ptr<OwnBatch> own_;  // null: none is open; shared, so that only own_batch.cpp needs the whole type
  bool has_record_ = false;        // a step that has begun has one
};

}  // namespace dtrain::train
