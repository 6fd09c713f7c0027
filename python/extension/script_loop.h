// The training of a script that has a loop of its own: `for batch in loader: …; loss.backward(); optimizer.step()`.
// What the script does is what is trained: a batch is a backward() of the model and the step after it, whatever the
// loader has given before. Training thread.
//
// The states, and what leads to the next:
//   kSettingUp  the script wraps model and optimizer in context(); begin()
//   kReady      between two batches; open_batch(), which the loader or the model's forward calls
//   kForward    a batch may be trained; backward(), or open_batch() of another one
//   kBackward   it has gradients; update(), or drop_gradients(); or another backward() adds to them
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

  // Starts the rank. `arguments`: a rank program's (program name, experiment file, options). Collective.
  explicit ScriptLoop(std::vector<std::string> arguments);
  ~ScriptLoop();

  State state() const { return state_; }
  // Error once the run has ended.
  TrialContext& context();
  int exit_code() const { return training_->exit_code(); }

  // Sets training up. `batches_per_epoch`: of this rank, if known.
  void begin(std::optional<std::int64_t> batches_per_epoch);
  // The epoch that the loop is in, and how many of its batches were over where this process began.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t skipped_batches() const { return skipped_; }
  // How many were trained since the start of the run.
  std::int64_t batches() const { return batches_; }

  // Before the loader reads the `number`-th batch of its pass, from 0: ends the batch before, and seeds what is drawn.
  void expect_batch(std::int64_t number);
  // A forward pass follows, of so many samples of this rank. `place`: as Batch has it. Where gradients wait for a step,
  // it is another part of their batch.
  void open_batch(std::int64_t samples, std::int64_t place);
  // Whether a backward() of this loss makes gradients of the model's parameters.
  bool reaches_model(const at::Tensor& loss) const;
  // Makes the model's gradients, and exchanges them unless more follow. `loss` is also the metric of this name; its
  // gradient counts `share` times.
  void backward(const at::Tensor& loss, double share, const BackwardOptions& options);
  // As zero_grad(): gradients that no step was made with are dropped. Collective where there are any.
  void drop_gradients();
  // The optimizer's step. Collective.
  void update();
  // Ends the batch that was updated, if there is one, and leaves one that has no gradients. Other functions call it
  // where it is due. Collective.
  void end_batch();
  // The data of an epoch has ended: returns when that of all ranks has. Collective.
  void end_epoch();
  // The script ends. Writes the weights and ends the run. Returns the exit code. Collective.
  int finish();
  // The script has failed: ends the run with this error.
  int fail(const std::string& error);

  // Called in each update, when the engine has updated.
  void after_update(std::function<void()> hook) { after_update_ = std::move(hook); }
  // The state that a checkpoint has of the script: made when one is taken, given back when a run goes on.
  void keep_state(std::function<TrialState()> save, std::function<void(const TrialState&)> load);

 private:
  class Source;
  class Script;
  // Calls what may end the run: an exception does.
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
  std::int64_t samples_ = 0;  // of the batch that is open
  std::int64_t place_ = -1;
  std::int64_t more_samples_ = 0;          // of a part that backward() was not called for yet
  bool is_over_ = false;                   // finish() was called
  bool zeroed_ = true;                     // drop_gradients() was called since the last update, or there was none
  std::optional<std::string> dropped_at_;  // where gradients were dropped that the script has not zeroed since then
  at::Tensor loss_;
  std::unordered_set<const at::TensorImpl*> parameters_;
  std::function<void()> after_update_;
  std::function<TrialState()> save_;
  std::function<void(const TrialState&)> load_;
};

}  // namespace dtrain::python
