// The beginning of the training, anew or with the state of a checkpoint, and the state that a checkpoint holds.
#include <string>
#include <utility>

#include "checkpoint/state_image.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/rank_session.h"
#include "loop/training_loop.h"

namespace dtrain::train {

TrainingLoop::Outcome TrainingLoop::begin() {
  // A part that the trial has put into evaluation mode (a frozen batch norm) stays in that mode.
  if (torch::nn::Module& model = *context_.wrapped().model; !model.is_training()) model.train();
  if (session_.evaluates()) return evaluate();
  if (!session_.resume_from().empty()) {
    resume();
  } else if (!begins_with_.empty()) {
    begin_with_checkpoint();
  } else {
    begin_anew();
  }
  progress_.start();
  const bool is_over =
      !lengths_.source_decides && lengths_.total_batches && position_.batches >= *lengths_.total_batches;
  if (early_stop_.is_due() || is_over) {
    if (early_stop_.is_due()) early_stop_.report(position_.batches);
    conclude(/*stopped=*/false);
    return Outcome::kDone;
  }
  return Outcome::kGoOn;
}

TrainingLoop::Outcome TrainingLoop::evaluate() {
  if (!validation_.has_data()) {
    throw rank::AgreedError("there is no validation data to evaluate the model with",
                            "return a loader from validation_loader() (model: data.validation)");
  }
  if (!begins_with_.empty()) {
    checkpoints_.begin_from(begins_with_, [this](bool same_trial) { other_run_has_same_trial_ = same_trial; });
  }
  session_.recorder().mark(profile::RunMark::kInitializationEnd);
  if (!session_.orders().empty()) {
    validate_as_ordered();
  } else if (const auto& file = session_.predictions(); !file.empty()) {
    validation_.predict(file, position_.batches, position_.epoch);
  } else {
    validation_.run(position_.batches, position_.epoch);
  }
  return Outcome::kDone;
}

void TrainingLoop::validate_as_ordered() {
  for (CheckpointOrders orders(session_); const auto checkpoint = orders.next();) {
    checkpoints_.begin_from(*checkpoint, [this](bool same_trial) { other_run_has_same_trial_ = same_trial; });
    validation_.run(position_.batches, position_.epoch);
  }
}

void TrainingLoop::begin_anew() {
  session_.begin_events(0);
  callbacks_.tell<&Callback::on_training_start>();
  validate_at_beginning();
  start_epoch(0);
}

void TrainingLoop::validate_at_beginning() {
  const bool validates = !session_.mock().any();
  const bool validates_now = validates && session_.experiment().perform_initial_validation;
  if (validates && !validates_now) validation_.check_metric();
  session_.recorder().mark(profile::RunMark::kInitializationEnd);
  if (validates_now) validate();
}

void TrainingLoop::begin_with_checkpoint() {
  checkpoints_.begin_from(begins_with_, [this](bool same_trial) { other_run_has_same_trial_ = same_trial; });
  other_run_has_same_trial_.reset();
  // Validations and non-finite values of another run say nothing about this run.
  plateau_.begin_waiting_anew();
  step_.forget_non_finite();
  session_.begin_events(position_.batches);
  callbacks_.tell<&Callback::on_training_start>();
  validate_at_beginning();
  seed(Draws::kEpoch);
  start_data();  // epochs of another length change the number of batches
  if (!lengths_.source_decides && lengths_.total_batches && position_.batches >= *lengths_.total_batches) {
    throw rank::AgreedError("searcher.max_length is " + std::to_string(*lengths_.total_batches) +
                                " batches, and in the checkpoint " + begins_with_.string() + " " +
                                std::to_string(position_.batches) + " are done",
                            "batches are counted on from the checkpoint's: give a greater length");
  }
  if (std::exchange(position_.due_is_open, false)) do_what_is_due(/*stepped=*/true);
}

void TrainingLoop::resume() {
  session_.recorder().mark(profile::RunMark::kInitializationEnd);
  // The best value by another metric is no measure for this one.
  if (!checkpoints_.resume()) validation_.forget_best();
  callbacks_.tell<&Callback::on_training_start>();
  seed(Draws::kEpoch);
  start_data();
  if (std::exchange(position_.due_is_open, false)) do_what_is_due(/*stepped=*/true);
}

void TrainingLoop::start_data() {
  const bool says_where = !loader_->position().empty();
  const bool only_one_says = data_position_.empty() == says_where;
  if (!begins_with_.empty() && only_one_says && position_.epoch_batches > 0 && session_.world().rank == 0) {
    session_.log()->warn(
        "the first {} batches of epoch {} are left out in this run's own order, because {} does not say which samples "
        "it has had: samples may be missing or come twice, but not with the same data set of dtrain's and the same "
        "seed",
        position_.epoch_batches, position_.epoch, says_where ? "the checkpoint" : "this run's loader");
  }
  if (data_position_.empty() || !says_where) {
    // Checkpoints of earlier versions count batches, and do not record the order.
    if (says_where && position_.epoch_batches > 0 && loader_->order_has_changed()) {
      const std::filesystem::path& own = session_.resume_from();
      throw ConfigError("the checkpoint " + (own.empty() ? begins_with_ : own).string() +
                            " is of the middle of epoch " + std::to_string(position_.epoch) +
                            ", and does not say which samples of it have been trained: "
                            "it is of a loader in Python, or of an earlier version of dtrain with another order",
                        "go on from a checkpoint at the end of an epoch, or with a data.shuffle_window as large as "
                        "the data");
    }
    loader_->start_epoch_at(position_.epoch, position_.epoch_batches);
    return;
  }
  const std::string difference = loader_->go_on_from(data_position_);
  if (!difference.empty() && session_.world().rank == 0) {
    session_.log()->warn("{}: samples of epoch {} may be missing or come twice", difference, position_.epoch);
  }
  end_after_epochs(session_, *loader_, position_, lengths_);
}

void TrainingLoop::visit(StateVisitor& visitor) {
  if (!visitor.replaces()) metrics_.prepare_visit();
  visitor.number("batches", position_.batches);
  visitor.number("epoch", position_.epoch);
  visitor.number("epoch_batches", position_.epoch_batches);
  if (!visitor.replaces()) data_position_ = loader_->position();
  visitor.text("data/position", data_position_);
  std::int64_t metrics_bytes = session_.metrics_bytes();
  visitor.number("due_is_open", position_.due_is_open);
  visitor.number("metrics_bytes", metrics_bytes);
  if (visitor.replaces()) context_.around_the_loop().batch = position_.batches;
  // Metrics and validations in another run's checkpoint are not those of this run.
  const bool is_own = !other_run_has_same_trial_;
  if (visitor.replaces() && is_own) session_.cut_metrics(metrics_bytes, position_.batches);
  if (is_own) {
    if (!session_.logical().virtuals) visitor.part("metrics", metrics_);
    visitor.part("validation", validation_);
    visitor.part("beside", beside_);
    visitor.part("early_stop", early_stop_);
  }
  visitor.part("plateau", plateau_);
  if (other_run_has_same_trial_.value_or(true)) {
    TrialStateEntries trial([this] { return trial_state(); },
                            [this](const TrialState& state) { trial_.load_state(state); });
    visitor.part("trial", trial);
    visitor.part("callbacks", callbacks_);
  }
  visitor.part("step", step_);
  if (session_.logical().virtuals) visit_logical_ranks(visitor);
}

}  // namespace dtrain::train
