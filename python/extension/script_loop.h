// The training loop under a script that has a loop of its own: `for batch in loader: …; loss.backward();
// optimizer.step()`. The engine's loop runs in a Fiber. Where it would ask a Trial for a batch, or to train on one, it
// suspends itself, and the script goes on.
//
// The states, and what the script calls in each:
//   kSettingUp    wrap the model and the optimizer in context(), then begin()
//   kWantsBatch   give_batch(), end_epoch() or finish()
//   kTraining     forward, context().backward(), then end_step()
//   kUpdated      end_batch(), once the script has stepped its schedulers: a checkpoint is taken then
//   kEnded        the length that the experiment sets is reached, or the run was stopped, or has failed: exit_code()
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/train/trial.h"
#include "fiber.h"

namespace dtrain::python {

class ScriptLoop {
 public:
  enum class State { kSettingUp, kWantsBatch, kTraining, kUpdated, kEnded };

  // Starts the rank. `arguments`: a rank program's (program name, experiment file, options). Collective.
  explicit ScriptLoop(std::vector<std::string> arguments);

  State state() const { return state_; }
  // Error once the loop has ended.
  TrialContext& context();
  int exit_code() const { return exit_code_; }

  // Sets training up. `batches_per_epoch`: of this rank, if known.
  void begin(std::optional<std::int64_t> batches_per_epoch);
  // The epoch that the loop is in, and how many of its batches are over: not 0 where a run goes on from a checkpoint.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t skipped_batches() const { return skipped_; }
  // The number of the last batch, from the start of the run.
  std::int64_t batches() const { return batches_; }
  // A batch of this rank is ready, of so many samples.
  void give_batch(std::int64_t samples);
  // More samples of the batch that is trained on: a step of several batches of the loader.
  void add_to_batch(std::int64_t samples);
  // The same backward() and step() that a trial's train_batch() calls. `loss` is also the metric of this name; its
  // gradient counts `share` times.
  void backward(const at::Tensor& loss, double share, const BackwardOptions& options);
  bool has_loss() const { return loss_.defined(); }
  void end_step();
  // Ends the batch that was updated, if there is one. The other functions call it where it is due.
  void end_batch();
  void end_epoch();
  // No batch comes any more. Writes the weights and ends the run. Returns the exit code.
  int finish();
  // The script has failed: ends the run with this error.
  int fail(const std::string& error);

  // Called after each batch, when the engine has updated and before a checkpoint is taken.
  void after_batch(std::function<void()> hook) { after_batch_ = std::move(hook); }
  // The state that a checkpoint has of the script: made when one is taken, given back when a run goes on.
  void keep_state(std::function<TrialState()> save, std::function<void(const TrialState&)> load);

 private:
  class Position;
  class Source;
  class Script;
  // From the loop: gives the thread to the script until it goes on.
  void wait_in(State state);
  void go_on();
  void throw_failure();

  std::vector<std::string> arguments_;
  State state_ = State::kSettingUp;
  TrialContext* context_ = nullptr;  // null before and after the run
  int exit_code_ = 0;
  std::optional<std::int64_t> batches_per_epoch_;
  std::int64_t epoch_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t batches_ = 0;
  std::int64_t samples_ = 0;    // of the batch that is given
  bool epoch_is_over_ = false;  // end_epoch() was called; the loop has not begun another one yet
  bool is_over_ = false;        // finish() was called
  std::optional<std::string> failure_;
  at::Tensor loss_;
  std::function<void()> after_batch_;
  std::function<TrialState()> save_;
  std::function<void(const TrialState&)> load_;
  Fiber fiber_;
};

}  // namespace dtrain::python
