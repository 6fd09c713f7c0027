// When checkpoints are taken: periodically, after validations that the experiment keeps, and at the end. A mock run
// takes none. Checkpoints carries it out. Training thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include "checkpoint/checkpoints.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/loader.h"
#include "loop/lengths.h"
#include "loop/validation.h"
#include "state/state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

class CheckpointSchedule {
 public:
  // `trial`: Trial::state_owner(). `data`: the training data, of whose length a checkpoint is told. `visit`: walks
  // through all of the state; collective. `before_each`: called before each checkpoint. The references outlive it.
  // Collective.
  CheckpointSchedule(run::RankSession& session, TrainingStep& step, const torch::nn::Module& model,
                     const std::string& trial, const BatchSource& data, const Lengths& lengths,
                     const Position& position, std::function<void()> before_each,
                     std::function<void(StateVisitor&)> visit);

  // Restores the state of the session's checkpoint, the position included. False: the checkpoint's searcher.metric is
  // another one. ConfigError, as StateReader::restore(), and in a mock run. Collective.
  bool resume();
  // The same with a checkpoint of another run, where a new run begins with its training state. `before`: called with
  // whether the checkpoint is of the same trial, before the state is visited. Collective.
  void begin_from(const std::filesystem::path& checkpoint, const std::function<void(bool same_trial)>& before);

  // Before each batch: what this rank announces. saver_busy() also hands over what the last update has completed.
  bool saver_busy();
  // `asked`: whether the trial asks for one.
  bool wants_one(bool asked) const;

  // The three below: collective, between two batches.
  // Takes one if the experiment keeps this validation.
  void after_validation(const Validation::Result& validated);
  // After an optimizer step: makes memory and starts the saver, once. True: it has done so.
  bool make_ready();
  // After an optimizer step: takes one if it is due. `metric`: of a validation after the same batch.
  void take_if_due(std::optional<double> metric);

  // No later update copies a part of a checkpoint.
  void end_copies_by_updates();
  // Takes the last one, which no update follows. Collective.
  void take_last(const char* reason, std::optional<double> metric);
  // Waits until the last one is durable. As Checkpoints::finish(). Collective.
  bool finish();

  // The time between checkpoints where the experiment names no length: a minute, or so long that they cost no more than
  // 0.5% of the time, but ten minutes at most. `cost_s`: what the last one has cost.
  static std::chrono::duration<double> automatic_period(double cost_s);

 private:
  // Whether one is due after this batch by the period, or because a rank has asked for it. The same on all ranks.
  bool is_due(std::int64_t batch) const;
  // It is due, but a saver is busy: says so, once for each, if that lasts.
  void delay();
  // As Checkpoints::save().
  void take(const char* reason, std::optional<double> metric, bool may_wait, bool last = false);

  // No checkpoint of before counts as one of this process.
  void restored();

  run::RankSession& session_;
  TrainingStep& step_;
  const Position& position_;
  const std::int64_t period_;  // batches; 0: rank 0 asks for one now and then
  const std::function<void()> before_each_;
  const std::function<void(StateVisitor&)> visit_;
  Json facts_;                        // about this run, for runs that go on from its checkpoints
  std::optional<Checkpoints> taken_;  // none in mock runs
  bool is_ready_ = false;             // make_ready() was called
  std::int64_t last_batch_ = 0;       // of the last one that was taken, or of the one that training goes on from
  std::optional<Nanoseconds> delayed_since_;  // when the next one was due, while it waits
  bool told_of_delay_ = false;
};

}  // namespace dtrain::train
