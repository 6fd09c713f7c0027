#include "loop/training_loop.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/utils.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json_number.h"
#include "dtrain/config/experiment.h"
#include "loop/mock_loader.h"

namespace dtrain::train {

namespace {

using profile::Phase;
using profile::PhaseScope;

// A rank's random stream in one step is a function of (seed, rank, step): nothing of it has to be saved. The mixing is
// the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
std::uint64_t step_seed(std::uint64_t seed, int rank, std::int64_t step) {
  std::uint64_t x = seed;
  for (const std::uint64_t part : {static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step)}) {
    x += 0x9e3779b97f4a7c15u * (part + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

}  // namespace

TrainingLoop::TrainingLoop(Trial& trial, TrialContext& context, run::RankSession& session, TrainingStep& step,
                           std::function<void()> save)
    : trial_(trial),
      context_(context),
      session_(session),
      step_(step),
      recorder_(session.recorder()),
      experiment_(session.experiment()),
      loader_(trial.training_loader()),
      feed_(context.device()),
      sync_debug_(context.device()),
      device_profile_(context.device(), recorder_, session.clock(), experiment_.profiling.sync_timings),
      validation_(trial, context, session),
      metrics_("training", session.control(), session.communicator()),
      save_(std::move(save)),
      progress_(session),
      deep_window_(session, context.device().is_cuda(), [this] { device_profile_.settle(step_.in_flight()); }),
      global_batch_(session.batch_per_rank() * session.world().size) {
  if (!loader_) throw ConfigError("training_loader() returned nothing", "return context.loader(data set)");
  if (session.mock().loader) loader_ = repeat_first_batch(std::move(loader_));
  find_lengths();
}

void TrainingLoop::find_lengths() {
  const Json mine = {{"batches", loader_->batches_per_epoch().value_or(-1)}};
  for (const std::string& text : session_.control().gather("train/epoch-length", mine.dump())) {
    const std::int64_t theirs = Json::parse(text)["batches"].get<std::int64_t>();
    if (theirs >= 0) batches_per_epoch_ = std::max(batches_per_epoch_.value_or(0), theirs);
  }
  if (!batches_per_epoch_ && experiment_.records_per_epoch) {
    batches_per_epoch_ = std::max<std::int64_t>(1, *experiment_.records_per_epoch / global_batch_);
  }
  if (batches_per_epoch_ == 0) {
    throw DataError("the training set is smaller than one batch for every rank (global batch: " +
                        std::to_string(global_batch_) + " samples)",
                    "lower hyperparameters.global_batch_size, or give more data");
  }
  warn_of_unused_length();
  const auto length_in_batches = [&](const config::Length& length, const char* key) {
    if (length.unit == config::LengthUnit::kEpochs && !batches_per_epoch_) {
      throw ConfigError(std::string(key) + " is in epochs, but the training data has no known length",
                        "give records_per_epoch, or use batches or records");
    }
    return config::in_batches(length, global_batch_, batches_per_epoch_.value_or(1));
  };
  validation_period_ = length_in_batches(experiment_.min_validation_period, "min_validation_period");
  const config::Length& length = experiment_.searcher.max_length;
  if (length.unit == config::LengthUnit::kEpochs) epochs_ = length.count;
  if (length.unit != config::LengthUnit::kEpochs || batches_per_epoch_) {
    total_batches_ = length_in_batches(length, "searcher.max_length");
  }
  Json lengths = Json::object();  // by which others see how far the run is
  if (total_batches_) lengths["batches"] = *total_batches_;
  if (batches_per_epoch_) lengths["batches_per_epoch"] = *batches_per_epoch_;
  session_.update_plan("length", lengths);
}

void TrainingLoop::warn_of_unused_length() const {
  if (!loader_->batches_per_epoch() || !experiment_.records_per_epoch || session_.world().rank != 0) return;
  if (std::max<std::int64_t>(1, *experiment_.records_per_epoch / global_batch_) == *batches_per_epoch_) return;
  session_.log()->warn(
      "records_per_epoch ({}) has no effect: the training data has a length of its own, {} batches of {} samples; "
      "leave "
      "the key out",
      *experiment_.records_per_epoch, *batches_per_epoch_, global_batch_);
}

void TrainingLoop::start_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  epoch_batches_ = 0;
  loader_->start_epoch(epoch);
}

void TrainingLoop::visit(StateVisitor& visitor) {
  visitor.number("batches", batches_);
  visitor.number("epoch", epoch_);
  visitor.number("epoch_batches", epoch_batches_);
  visitor.part("validation", validation_);
  visitor.part("step", step_);
}

bool TrainingLoop::epoch_is_full() const {
  // Only a source without a length of its own is cut to records_per_epoch; the others end by themselves.
  return !loader_->batches_per_epoch() && batches_per_epoch_ && epoch_batches_ >= *batches_per_epoch_;
}

bool TrainingLoop::run() {
  // A part that the trial has put into evaluation mode (a frozen batch norm) stays there.
  if (torch::nn::Module& model = *context_.wrapped().model; !model.is_training()) model.train();
  if (!session_.mock().any()) {
    experiment_.perform_initial_validation ? validation_.run(0, 0) : validation_.check_metric();
  }
  start_epoch(0);
  progress_.start({0, total_batches_.value_or(0), 0, 0, batches_per_epoch_.value_or(0)});
  Outcome outcome = Outcome::kGoOn;
  while (outcome == Outcome::kGoOn) outcome = run_round();
  conclude(outcome == Outcome::kStopped);
  device_profile_.settle(step_.in_flight());
  recorder_.mark(profile::RunMark::kLoopEnd);
  deep_window_.finish(batches_);
  return outcome == Outcome::kStopped;
}

TrainingLoop::Outcome TrainingLoop::run_round() {
  deep_window_.before_step(batches_ + 1);
  recorder_.begin_step(batches_ + 1);
  session_.set_step(batches_ + 1);

  // 1. The batch. A rank whose data has ended takes part in the exchange with nothing to give until all have ended.
  std::optional<Batch> batch;
  {
    const PhaseScope phase(recorder_, Phase::kDataloaderNext);
    if (!epoch_is_full()) batch = loader_->next();
    if (batch) record_loader(*batch);
  }
  step_.announce(batch.has_value(), session_.stop_requested(),
                 deep_window_.wanted(batches_ + 1, step_.announcement_rounds()));
  if (!batch) {
    const Round round = step_.agree();
    if (round.active == 0) return end_of_epoch(round);
  }

  // 2. Forward and backward, buckets leaving as they fill; 3. the exchange; 4. the optimizer.
  bool stepped = session_.mock().train;
  if (!session_.mock().train) {
    const SyncDebug::Scope no_waits(sync_debug_, batches_ + 1);
    step_.begin_batch();
    if (batch) train_batch(*batch);
    stepped = step_.end_batch();
  }
  ++batches_;
  ++epoch_batches_;
  progress_.batch_done();

  // 5. What is due now and then.
  const bool last = total_batches_ && batches_ == *total_batches_;
  const bool stopped = stepped && step_.stop_seen();
  if (last || stopped) {
    conclude(stopped && !last);
    progress_.leave_out_pause();
  } else {
    if (batches_ % experiment_.scheduling_unit == 0) begin_training_metrics();
    finish_training_metrics();
    if (!session_.mock().any() && validation_period_ > 0 && batches_ % validation_period_ == 0) {
      step_.synchronise();
      finish_training_metrics(/*all=*/true);
      validation_.run(batches_, epoch_);
      progress_.leave_out_pause();
    }
  }
  {
    const PhaseScope phase(recorder_, Phase::kCallbacks);
    const Metrics* latest = unread_metrics_.empty() ? nullptr : &unread_metrics_.back().first;
    progress_.update({batches_, total_batches_.value_or(0), epoch_, epoch_batches_, batches_per_epoch_.value_or(0)},
                     global_batch_, latest);
  }
  recorder_.end_step({batch ? batch->samples : 0, stepped && step_.synchronised(), epoch_});
  deep_window_.after_step(batches_, step_.take_trace_window());
  return last ? Outcome::kDone : stopped ? Outcome::kStopped : Outcome::kGoOn;
}

void TrainingLoop::record_loader(const Batch& batch) {
  recorder_.loader(
      {.queue_depth = loader_->queue_depth(),
       .workers = loader_->workers(),
       .fetch_ns = batch.fetch_ns,
       .pinned = !context_.device().is_cpu() && !batch.tensors.empty() && batch.tensors.front().is_pinned()});
}

TrainingLoop::Outcome TrainingLoop::end_of_epoch(const Round& round) {
  if (epoch_batches_ == 0) {
    throw DataError("epoch " + std::to_string(epoch_) + " has no batch on any rank",
                    "the training data is empty, or its source gives nothing after the first epoch");
  }
  if (round.stop) return Outcome::kStopped;
  if (!total_batches_ && epoch_ + 1 >= epochs_) return Outcome::kDone;
  start_epoch(epoch_ + 1);
  return Outcome::kGoOn;
}

void TrainingLoop::train_batch(Batch& batch) {
  {
    const PhaseScope phase(recorder_, Phase::kToDevice);
    feed_.move(batch);
  }
  torch::manual_seed(step_seed(experiment_.experiment_seed, session_.world().rank, batches_ + 1));
  const PhaseScope phase(recorder_, Phase::kForward);
  bool ran_backward = false;
  context_.wrapped().backward = [&](const at::Tensor& loss) {
    step_.backward(loss);
    ran_backward = true;
    recorder_.switch_to(Phase::kTrainBatch);  // what train_batch() does after backward is neither
  };
  Metrics metrics = trial_.train_batch(batch);
  context_.wrapped().backward = nullptr;
  if (!ran_backward) {
    throw Error("train_batch() returned without calling context.backward()",
                "call context.backward(loss) instead of loss.backward(); to skip a batch, use a loss multiplied by 0");
  }
  keep_metrics(std::move(metrics), batch.samples);
  context_.warn_of_unread_keys();
}

void TrainingLoop::keep_metrics(Metrics metrics, std::int64_t samples) {
  if (context_.device().is_cpu()) {
    unread_metrics_.emplace_back(std::move(metrics), samples);
    return;
  }
  metrics_.add(metrics, samples);
  const auto loss = metrics.find("loss");
  if (session_.world().rank != 0 || loss == metrics.end()) return;
  if (!loss->second.is_on_device()) return progress_.set_loss(loss->second.value());
  step_.in_flight().read(loss->second.tensor(),
                         [this](std::span<const double> value) { progress_.set_loss(value.front()); });
}

void TrainingLoop::begin_training_metrics() {
  step_.check_members();
  step_.write_non_finite();
  const PhaseScope phase(recorder_, Phase::kFromDevice);
  for (const auto& [metrics, samples] : unread_metrics_) metrics_.add(metrics, samples);
  if (!unread_metrics_.empty()) progress_.set_loss(unread_metrics_.back().first);
  unread_metrics_.clear();
  due_metrics_.push_back(
      {batches_, epoch_, step_.optimizer().steps(), step_.optimizer().last_learning_rate(), metrics_.take()});
  DueMetrics& due = due_metrics_.back();
  if (!due.sums.device_sums.defined()) return;
  step_.in_flight().read(due.sums.device_sums,
                         [&due](std::span<const double> values) { due.sums.add_device_sums(values); });
}

void TrainingLoop::finish_training_metrics(bool all) {
  if (all && !due_metrics_.empty()) {
    step_.in_flight().extend_batch();
    step_.in_flight().finish_all();
  }
  // What was asked for after a batch comes with the next one.
  const std::int64_t lag = step_.in_flight().lag() == 0 ? 0 : step_.in_flight().lag() + 1;
  while (!due_metrics_.empty() && (all || due_metrics_.front().batch + lag <= batches_)) {
    const PhaseScope phase(recorder_, Phase::kReduceMetrics);
    DueMetrics due = std::move(due_metrics_.front());
    due_metrics_.pop_front();
    const bool together = experiment_.optimizations.average_training_metrics && !session_.mock().alone();
    const ReducedMetrics reduced =
        together ? metrics_.reduce(std::move(due.sums)) : MetricReducer::local_means(due.sums);
    if (session_.world().rank != 0 || reduced.samples == 0) continue;
    session_.write_metrics({{"kind", "training"},
                            {"batch", due.batch},
                            {"epoch", due.epoch},
                            {"samples", reduced.samples},
                            {"optimizer_steps", due.optimizer_steps},
                            {"learning_rate", due.learning_rate},
                            {"metrics", numbers_or_texts(reduced.means)}});
  }
}

void TrainingLoop::conclude(bool stopped) {
  if (concluded_) return;
  concluded_ = true;
  step_.flush();
  step_.report();
  {
    const PhaseScope phase(recorder_, Phase::kCheckpoint);
    save_();
  }
  begin_training_metrics();
  finish_training_metrics(/*all=*/true);
  if (!stopped && !session_.mock().any()) validation_.run(batches_, epoch_);
}

}  // namespace dtrain::train
