// The training of one rank from its start to its end, driven by run_trial(), or by a program that has the loop itself.
// Training thread.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/StreamGuard.h>

#include "dtrain/rank/rank_session.h"
#include "dtrain/train/run_trial.h"
#include "loop/training_loop.h"

namespace dtrain::train {

// Starts the session of a rank program with these arguments. Null: it could not start, `exit_code` says how the process
// ends, and the error is reported. Collective.
std::unique_ptr<rank::RankSession> start_session(int argc, char** argv, bool for_model, int& exit_code);

// Makes libtorch's own operators faster on this process's cores, as the experiment wants it: threads, memory that
// stays with the process, matrix products, own operators. To be called before libtorch first computes anything.
void use_fast_operators(rank::RankSession& session);

class RankTraining {
 public:
  // Starts the rank and opens its device. Returns false if it could not start; the error is reported then. Collective.
  bool open(int argc, char** argv, bool for_model = false);
  TrialContext& context() { return *context_; }
  // To be called when the trial has wrapped model and optimizer. Throws. Collective.
  void prepare(std::unique_ptr<Trial> trial);
  TrainingLoop& loop() { return *loop_; }
  // Ends the loop after its last round, and the run. Returns the process's exit code. Throws. Collective.
  int finish(TrainingLoop::Outcome outcome);
  // Called instead of finish(): ends the run with the exception that is being handled. Returns the exit code.
  int fail();
  // True after fail() if this rank ends because another one has failed and its launcher replaces both: then the
  // objects of the run are left as they are, their threads too, and the process must end at once.
  bool is_abandoned() const { return abandoned_; }
  int exit_code() const { return exit_code_; }

 private:
  void open_device();
  void save_as_survivor();  // after the exception that is being handled
  void close();             // closes everything but the session
  void abandon();

  // Each member uses those before it.
  std::unique_ptr<rank::RankSession> session_;
  std::optional<c10::StreamGuard> stream_;
  std::unique_ptr<TrialContext> context_;
  std::unique_ptr<Trial> trial_;
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<TrainingLoop> loop_;
  int exit_code_ = 0;
  bool abandoned_ = false;
};

// Carries out the whole training. Returns the process's exit code. Collective.
int run_training(RankTraining& training, int argc, char** argv, const TrialFactory& make_trial, bool for_model = false);

}  // namespace dtrain::train
