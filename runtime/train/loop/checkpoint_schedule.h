// Decides when checkpoints are taken: periodically, after validations that the experiment keeps, and at the end. A mock
// run takes none. Checkpoints does the work. Training thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include "checkpoint/checkpoints.h"
#include "checkpoint/generations.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"
#include "loop/progress.h"
#include "loop/validation.h"
#include "state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

class CheckpointSchedule {
 public:
  // `trial`: Trial::state_owner(). `data`: the training data; a checkpoint stores its length. `visit`: walks through
  // all of the state; collective. `before_each`: called before each checkpoint. The references outlive the schedule.
  // Collective.
  CheckpointSchedule(rank::RankSession& session, TrainingStep& step, const torch::nn::Module& model,
                     const std::string& trial, const BatchSource& data, const Lengths& lengths,
                     const Position& position, std::function<void()> before_each,
                     std::function<void(StateVisitor&)> visit);

  // Restores the state of the session's checkpoint, the position included. Returns false if the checkpoint's
  // searcher.metric is another one. Throws ConfigError as StateReader::restore() does, and in a mock run. Collective.
  bool resume();
  // The same with a checkpoint of another run, with whose training state a new run begins. `before` is called before
  // the state is visited; its argument is true if the checkpoint is of the same trial. Collective.
  void begin_from(const std::filesystem::path& checkpoint, const std::function<void(bool same_trial)>& before);

  // To be called before each batch, for its announcement. saver_busy() also hands over the last update's copies.
  bool saver_busy();
  // `asked`: true if the trial asks for a checkpoint.
  bool wants_one(bool asked) const;

  // The same of the states in memory.
  bool generation_busy();
  bool wants_generation() const;
  // After a batch: as Generations::publish().
  void publish_own();
  // To be called after take_if_due(): takes a state in memory if one is due. Collective.
  void take_generation_if_due();
  // As Generations::save_as_survivor().
  std::optional<std::int64_t> save_as_survivor();

  // The four functions below are collective, and called between two batches. The first takes a checkpoint if the
  // experiment keeps this validation.
  void after_validation(const Validation::Result& validated);
  // The same for a validation beside the training, which evaluates the checkpoint.
  void take_for_validation();
  // Notes in a checkpoint of this run, and in the run's events, that its validation has ended. Rank 0.
  void note_validation(const std::filesystem::path& checkpoint, std::int64_t batch, std::optional<double> metric);
  // After an optimizer step: allocates memory and starts the saver, once: after the second step of a run that goes on
  // from a checkpoint. Returns true if it has done so.
  bool make_ready();
  // After an optimizer step: takes a checkpoint if one is due. `metric`: of a validation after the same batch.
  void take_if_due(std::optional<double> metric);

  // From now on no update copies a part of a checkpoint.
  void end_copies_by_updates();
  // Takes the last checkpoint, which no update follows. Collective.
  void take_last(const char* reason, std::optional<double> metric);
  // Waits until the last checkpoint is durable. As Checkpoints::make_durable(). Collective.
  bool make_durable();

  // Returns the time between checkpoints where the experiment names no length: so long that they cost at most 0.5% of
  // the time, between one and ten minutes. `cost_s`: the cost of the last checkpoint.
  static std::chrono::duration<double> automatic_period(double cost_s);

 private:
  // True if a checkpoint is due after this batch, by the period or because a rank asked for it. The same on all ranks.
  bool is_due(std::int64_t batch) const;
  // Handles a checkpoint that is due while a saver is busy: reports the delay if it lasts, once for each checkpoint.
  void delay();
  // As Checkpoints::save().
  void take(const char* reason, std::optional<double> metric, bool may_wait, bool last = false,
            bool awaits_validation = false);

  // An update copies for one checkpoint at a time: what is left of a state in memory is copied now.
  void finish_generation();
  // From now on earlier checkpoints do not count as checkpoints of this process.
  void restored();

  rank::RankSession& session_;
  TrainingStep& step_;
  const Position& position_;
  const std::int64_t period_;  // batches; 0: rank 0 asks for one now and then
  const std::function<void()> before_each_;
  const std::function<void(StateVisitor&)> visit_;
  Json facts_;                            // about this run, for runs that go on from its checkpoints
  std::optional<Checkpoints> taken_;      // none in mock runs
  std::optional<Generations> in_memory_;  // the same
  std::int64_t last_generation_ = 0;      // the batch at which a state in memory was last taken, or prepared
  bool is_ready_ = false;                 // make_ready() was called
  bool is_restored_ = false;              // no batch has followed yet: the first one is not to wait for make_ready()
  std::int64_t last_batch_ = 0;           // of the last checkpoint taken, or of the one that training goes on from
  std::optional<Nanoseconds> delayed_since_;  // when the next checkpoint was due, while it waits
  bool told_of_delay_ = false;
};

}  // namespace dtrain::train
