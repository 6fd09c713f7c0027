#include "loop/training_loop.h"

#include <string>
#include <utility>

#include "checkpoint/trial_state.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "loop/mock_loader.h"
#include "precision/autocast.h"

namespace dtrain::train {

namespace {

using profile::Phase;
using profile::PhaseScope;

// The training data. Its random numbers are those of the batch that comes next.
Loader training_loader(Trial& trial, const run::RankSession& session, const Position& position) {
  seed_draws(session, Draws::kData, 0);
  Loader loader = trial.training_loader();
  if (!loader) throw ConfigError("training_loader() returned nothing", "return context.loader(data set)");
  loader->seed_with([&session, &position](std::int64_t batch) {  // of the epoch
    seed_draws(session, Draws::kData, position.batches - position.epoch_batches + batch + 1);
  });
  return session.mock().loader ? repeat_first_batch(std::move(loader)) : loader;
}

}  // namespace

TrainingLoop::TrainingLoop(Trial& trial, TrialContext& context, run::RankSession& session, TrainingStep& step,
                           std::unique_ptr<StepGraph> graph, std::function<void()> save)
    : trial_(trial),
      context_(context),
      session_(session),
      step_(step),
      loader_(training_loader(trial, session, position_)),
      feed_(context.device()),
      validation_(trial, context, session, step),
      lengths_(find_lengths(session, *loader_)),
      progress_(session, lengths_, position_),
      metrics_(session, step, position_, progress_),
      graph_(std::move(graph)),
      save_(std::move(save)),
      measured_{.sync_debug = SyncDebug(context.device()),
                .device_profile = DeviceProfile(context.device(), session.recorder(), session.clock(),
                                                session.experiment().profiling.sync_timings),
                .deep_window = DeepWindow(session, context.device().is_cuda(),
                                          [this] { measured_.device_profile.settle(step_.in_flight()); }),
                .counted_batches = CountedBatches(session, context.device().is_cuda())},
      checkpoints_(session, step, *context.wrapped().model, *loader_, lengths_, position_,
                   [this](StateVisitor& visitor) { visit(visitor); }) {}

TrainingLoop::End TrainingLoop::run() {
  // A part that the trial has put into evaluation mode (a frozen batch norm) stays there.
  if (torch::nn::Module& model = *context_.wrapped().model; !model.is_training()) model.train();
  if (session_.resume_from().empty()) {
    begin_anew();
  } else {
    resume();
  }
  progress_.start();
  Outcome outcome = Outcome::kGoOn;
  if (lengths_.total_batches && position_.batches >= *lengths_.total_batches) {
    conclude(/*stopped=*/false);
    outcome = Outcome::kDone;
  }
  while (outcome == Outcome::kGoOn) outcome = run_round();
  measured_.device_profile.settle(step_.in_flight());
  session_.recorder().mark(profile::RunMark::kLoopEnd);
  measured_.deep_window.finish(position_.batches);
  measured_.counted_batches.finish();
  return {.stopped = outcome == Outcome::kStopped, .saved = checkpoints_.finish()};
}

void TrainingLoop::begin_anew() {
  if (!session_.mock().any()) {
    if (!session_.experiment().perform_initial_validation) {
      validation_.check_metric();
    } else {
      validation_.run(0, 0);
    }
  }
  start_epoch(0);
}

void TrainingLoop::resume() {
  // What was the best by another metric is no measure for this one.
  if (!checkpoints_.resume()) validation_.forget_best();
  seed(Draws::kEpoch);
  loader_->start_epoch_at(position_.epoch, position_.epoch_batches);
  if (std::exchange(position_.due_is_open, false)) do_what_is_due(/*stepped=*/true);
}

void TrainingLoop::visit(StateVisitor& visitor) {
  if (!visitor.replaces()) metrics_.prepare_visit();
  visitor.number("batches", position_.batches);
  visitor.number("epoch", position_.epoch);
  visitor.number("epoch_batches", position_.epoch_batches);
  std::int64_t metrics_bytes = session_.metrics_bytes();
  visitor.number("due_is_open", position_.due_is_open);
  visitor.number("metrics_bytes", metrics_bytes);
  if (visitor.replaces()) session_.cut_metrics(metrics_bytes);
  visitor.part("metrics", metrics_);
  visitor.part("validation", validation_);
  TrialStateEntries trial(trial_);
  visitor.part("trial", trial);
  visitor.part("step", step_);
}

void TrainingLoop::start_epoch(std::int64_t epoch) {
  position_.epoch = epoch;
  position_.epoch_batches = 0;
  seed(Draws::kEpoch);
  loader_->start_epoch(epoch);
}

bool TrainingLoop::epoch_is_full() const {
  // Only a source without a length of its own is cut to records_per_epoch; the others end by themselves.
  return !loader_->batches_per_epoch() && lengths_.batches_per_epoch &&
         position_.epoch_batches >= *lengths_.batches_per_epoch;
}

void TrainingLoop::seed(Draws draws) {
  seed_draws(session_, draws, draws == Draws::kEpoch ? position_.epoch : position_.batches + 1);
}

TrainingLoop::Outcome TrainingLoop::run_round() {
  profile::Recorder& recorder = session_.recorder();
  const std::int64_t number = position_.batches + 1;
  measured_.deep_window.before_step(number);
  recorder.begin_step(number);
  session_.set_step(number);

  // 1. The batch. A rank whose data has ended takes part in the exchange with nothing to give until all have ended.
  std::optional<Batch> batch;
  {
    const PhaseScope phase(recorder, Phase::kDataloaderNext);
    seed(Draws::kData);
    if (!epoch_is_full()) batch = loader_->next();
    if (batch) record_loader(*batch);
  }
  // A trace shows operators and phases, of which a graph shows none.
  const bool fits_graph = graph_ && batch && !measured_.deep_window.is_open() && graph_->fits(*batch);
  step_.announce(batch.has_value(), {.stop = session_.stop_requested(),
                                     .saver_busy = checkpoints_.saver_busy(),
                                     .wants_checkpoint = checkpoints_.wants_one(),
                                     .fits_graph = fits_graph,
                                     .trace = measured_.deep_window.wanted(number, step_.announcement_rounds())});
  if (!batch) {
    const Round round = step_.agree();
    if (round.active == 0) return end_of_epoch(round);
  }

  // 2. Forward and backward, buckets leaving as they fill; 3. the exchange; 4. the optimizer.
  bool stepped = session_.mock().train;
  if (!session_.mock().train) {
    const SyncDebug::Scope no_waits(measured_.sync_debug, number);
    if (batch) {
      const PhaseScope phase(recorder, Phase::kToDevice);
      feed_.move(*batch);
    }
    if (batch) {
      seed(Draws::kBeforeBatch);
      trial_.before_batch(*batch);
    }
    const bool as_graph = fits_graph && step_.agree().graphs == session_.world().size;
    stepped = (as_graph && step_as_graph(*batch)) || step_eagerly(batch);
  }
  ++position_.batches;
  ++position_.epoch_batches;
  progress_.batch_done();

  // 5. What is due now and then.
  const bool last = lengths_.total_batches && number == *lengths_.total_batches;
  const bool stopped = stepped && step_.stop_is_due();
  if (last || stopped) {
    position_.due_is_open = !last || step_.window_is_open();
    conclude(stopped && !last);
    progress_.leave_out_pause();
  } else {
    do_what_is_due(stepped);
  }
  {
    const PhaseScope phase(recorder, Phase::kCallbacks);
    progress_.update(metrics_.latest());
  }
  recorder.end_step({batch ? batch->samples : 0, stepped && step_.synchronised(), position_.epoch});
  measured_.deep_window.after_step(number, step_.take_trace_window());
  measured_.counted_batches.after_step();
  return last ? Outcome::kDone : stopped ? Outcome::kStopped : Outcome::kGoOn;
}

bool TrainingLoop::step_eagerly(const std::optional<Batch>& batch) {
  step_.begin_batch();
  if (batch) train_batch(*batch);
  return step_.end_batch();
}

bool TrainingLoop::step_as_graph(const Batch& batch) {
  const auto metrics = graph_->step(
      batch, [this](const Batch& places) { return call_trial(places); }, [this] { seed(Draws::kTraining); });
  if (!metrics) return false;
  metrics_.keep(*metrics, batch.samples);
  return true;
}

void TrainingLoop::train_batch(const Batch& batch) {
  seed(Draws::kTraining);
  const PhaseScope phase(session_.recorder(), Phase::kForward);
  Metrics metrics;
  {
    const auto counting = measured_.counted_batches.begin();
    metrics = call_trial(batch);
  }
  measured_.counted_batches.end(position_.batches + 1, batch.samples);
  metrics_.keep(std::move(metrics), batch.samples);
  context_.warn_of_unread_keys();
}

Metrics TrainingLoop::call_trial(const Batch& batch) {
  const Autocast autocast(autocast_type(session_.experiment().optimizations.mixed_precision), context_.device());
  bool ran_backward = false;
  context_.wrapped().backward = [&](const at::Tensor& loss, std::optional<double> weight) {
    const Autocast::Pause in_full(autocast);
    step_.backward(loss, weight);
    ran_backward = true;
    session_.recorder().switch_to(Phase::kTrainBatch);  // what train_batch() does after backward is neither
  };
  Metrics metrics = trial_.train_batch(batch);
  context_.wrapped().backward = nullptr;
  if (!ran_backward) {
    throw Error("train_batch() returned without calling context.backward()",
                "call context.backward(loss) instead of loss.backward(); to skip a batch, use a loss multiplied by 0");
  }
  return metrics;
}

void TrainingLoop::record_loader(const Batch& batch) {
  session_.recorder().loader(
      {.queue_depth = loader_->queue_depth(),
       .workers = loader_->workers(),
       .fetch_ns = batch.fetch_ns,
       .pinned = !context_.device().is_cpu() && !batch.tensors.empty() && batch.tensors.front().is_pinned()});
}

void TrainingLoop::do_what_is_due(bool stepped) {
  if (position_.batches % session_.experiment().scheduling_unit == 0) metrics_.begin();
  metrics_.finish();
  Validation::Result validated;
  const std::int64_t period = lengths_.validation_period;
  if (!session_.mock().any() && period > 0 && position_.batches % period == 0) {
    step_.synchronise();
    metrics_.finish_all();
    if (const auto result = validation_.run(position_.batches, position_.epoch)) {
      validated = *result;
      checkpoints_.after_validation(validated);
    }
    progress_.leave_out_pause();
  }
  if (!stepped) return;
  if (checkpoints_.make_ready()) progress_.leave_out_pause();
  checkpoints_.take_if_due(validated.metric);
}

TrainingLoop::Outcome TrainingLoop::end_of_epoch(const Round& round) {
  if (position_.epoch_batches == 0) {
    throw DataError("epoch " + std::to_string(position_.epoch) + " has no batch on any rank",
                    "the training data is empty, or its source gives nothing after the first epoch");
  }
  const bool is_last_epoch = !lengths_.total_batches && position_.epoch + 1 >= lengths_.epochs;
  if (round.stop || is_last_epoch) {
    conclude(round.stop);
    return round.stop ? Outcome::kStopped : Outcome::kDone;
  }
  start_epoch(position_.epoch + 1);
  return Outcome::kGoOn;
}

void TrainingLoop::conclude(bool stopped) {
  if (stopped) session_.begin_last_save();
  // What is left of a window may bring one more update: nothing may be copied then into memory that a saver reads.
  checkpoints_.end_copies_by_updates();
  const bool goes_on_from_here = stopped || step_.window_is_open();
  if (goes_on_from_here) checkpoints_.take_last(stopped ? "stop" : "end", {});
  step_.flush();
  step_.report();
  {
    const PhaseScope phase(session_.recorder(), Phase::kCheckpoint);
    save_();
  }
  metrics_.begin();
  metrics_.finish_all();
  if (stopped || session_.mock().any()) return;
  const auto validated = validation_.run(position_.batches, position_.epoch);
  if (!goes_on_from_here) checkpoints_.take_last("end", validated.value_or(Validation::Result{}).metric);
}

}  // namespace dtrain::train
