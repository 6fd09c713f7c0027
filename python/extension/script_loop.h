// Trains with a script that has its own loop: `for batch in loader: …; loss.backward(); optimizer.step()`. The script
// defines the batches: a batch is a backward() of the model and the step after it, independent of the loader's batches.
// Training thread.
//
// The states, and the calls that lead to the next state:
//   kSettingUp  the script wraps model and optimizer in context(); begin()
//   kReady      between two batches; open_batch(), which the loader or the model's forward calls
//   kForward    a batch is open; backward(), or open_batch() of another batch
//   kBackward   the batch has gradients; update(), drop_gradients(), or another backward(), which adds to them
//   kUpdated    the optimizer has stepped, and the script may step its schedulers; end_batch(), which may save
//   kEnded      the run was stopped, has failed, or is over: exit_code()
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/train/trial.h"
#include "loop/rank_training.h"

namespace dtrain::python {

class ScriptLoop {
 public:
  enum class State { kSettingUp, kReady, kForward, kBackward, kUpdated, kEnded };

  // Starts the rank. `arguments`: those of a rank program (program name, experiment file, options). Collective.
  explicit ScriptLoop(std::vector<std::string> arguments);
  ~ScriptLoop();

  State state() const { return state_; }
  // Error once the run has ended.
  TrialContext& context();
  int exit_code() const { return training_->exit_code(); }

  // Sets training up. `batches_per_epoch`: of this rank; empty: not known.
  void begin(std::optional<std::int64_t> batches_per_epoch);
  // The current epoch, and the number of its batches that were done before this process began.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t skipped_batches() const { return skipped_; }
  // Number of batches trained since the start of the run.
  std::int64_t batches() const { return batches_; }

  // Called before the loader reads batch `number` of its pass, from 0. Ends the last batch and seeds random numbers.
  void expect_batch(std::int64_t number);
  // Opens a batch for a forward pass with this number of samples of this rank. `place`: that of Batch. If gradients
  // wait for a step, the pass is another part of their batch.
  void open_batch(std::int64_t samples, std::int64_t place);
  // True if a backward() of this loss makes gradients of the model's parameters.
  bool reaches_model(const at::Tensor& loss) const;
  // Computes the model's gradients, and exchanges them unless more follow. `loss` is also the metric "loss"; its
  // gradient counts `share` times.
  void backward(const at::Tensor& loss, double share, const BackwardOptions& options);
  // Drops gradients without a step, like zero_grad(). Collective if there are gradients.
  void drop_gradients();
  // Makes the optimizer's step. Collective.
  void update();
  // Ends a batch after its update, and leaves an open batch without gradients. Other functions call it when needed.
  // Collective.
  void end_batch();
  // Called when the epoch's data has ended. Returns when the data of all ranks has ended. Collective.
  void end_epoch();
  // Called when the script ends. Writes the weights and ends the run. Returns the exit code. Collective.
  int finish();
  // Ends the run with the error of a failed script. Returns the exit code.
  int fail(const std::string& error);

  // Sets a function that is called after each update by the engine.
  void after_update(std::function<void()> hook) { after_update_ = std::move(hook); }
  // Sets the functions that make the script's state for a checkpoint and restore it when a run continues.
  void keep_state(std::function<TrialState()> save, std::function<void(const TrialState&)> load);

 private:
  class Source;
  class Script;
  // Calls a function; an exception ends the run.
  template <typename Call>
  void run(const Call& call);
  void follow(train::TrainingLoop::Outcome outcome);
  void end(train::TrainingLoop::Outcome outcome);
  void open();
  void leave_open_batch();
  void drop();
  train::TrainingLoop& loop() { return training_->loop(); }

  std::vector<std::string> arguments_;
  std::unique_ptr<train::RankTraining> training_;
  State state_ = State::kSettingUp;
  std::optional<std::int64_t> batches_per_epoch_;
  std::int64_t epoch_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t batches_ = 0;
  std::int64_t opened_ = 0;   // batches since the last update
  std::int64_t samples_ = 0;  // of the open batch
  std::int64_t place_ = -1;
  std::int64_t more_samples_ = 0;          // of a part for which backward() has not been called
  bool is_over_ = false;                   // finish() has been called
  bool zeroed_ = true;                     // no update yet, or drop_gradients() called since
  std::optional<std::string> dropped_at_;  // batch whose dropped gradients are not zeroed
  at::Tensor loss_;
  std::unordered_set<const at::TensorImpl*> parameters_;
  std::function<void()> after_update_;
  std::function<TrialState()> save_;
  std::function<void(const TrialState&)> load_;
};

}  // namespace dtrain::python
