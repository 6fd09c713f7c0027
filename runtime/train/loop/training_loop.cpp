#include "loop/training_loop.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "checkpoint/open_checkpoint.h"
#include "checkpoint/state_reader.h"
#include "checkpoint/trial_state.h"

#include "dtrain/base/error.h"
#include "dtrain/base/json_number.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/version.h"
#include "loop/mock_loader.h"
#include "matmul/matmul_path.h"
#include "precision/autocast.h"

namespace dtrain::train {

namespace {

using profile::Phase;
using profile::PhaseScope;

std::string metric_text(const config::Searcher& searcher) {
  if (searcher.metric.empty()) return "none";
  return searcher.metric + (searcher.smaller_is_better ? ", smaller is better" : ", larger is better");
}

// What computes: the trial's program, or the model's file. A file that cannot be read any more (it has been replaced)
// has no checksum.
std::string program_text(const std::optional<config::ModelJob>& job) {
  std::error_code code;
  const std::filesystem::path own = "/proc/self/exe";
  const std::string name = (job ? job->file : std::filesystem::read_symlink(own, code)).filename();
  try {
    return name + " with the checksum " + checkpoints::checksum_of_file(job ? job->file : own);
  } catch (const SystemError&) {
    return name;
  }
}

// What a run that goes on is compared with, besides the experiment's keys that change what is trained: what may change
// the bits. Those of rank 0, on all ranks: the savers of all hosts write the same. Collective.
Json facts_for_resume(run::RankSession& session, const BatchSource& data) {
  constexpr const char* kKey = "train/resume-facts";
  if (session.world().rank == 0) {
    const config::Experiment& experiment = session.experiment();
    const auto& job = experiment.model;
    const auto samples = data.samples_per_epoch();
    Json facts = {{"name", experiment.name},
                  {"model", job ? Json(std::filesystem::absolute(job->file).lexically_normal().string()) : Json()},
                  {"program", program_text(job)},
                  {"global_batch_size", experiment.global_batch_size},
                  {"samples_per_epoch", samples ? Json(*samples) : Json()},
                  {"metric", metric_text(experiment.searcher)},
                  {"seed", experiment.experiment_seed},
                  {"dtrain", run::version()},
                  {"libtorch", TORCH_VERSION},
                  {"cpu_capability", at::get_cpu_capability()},
                  {"threads", at::get_num_threads()},
                  {"device", session.gpu() ? "cuda" : "cpu"}};
    // It has been chosen when the process began.
    if (!session.gpu()) facts["matmul"] = profile::to_string(choose_matmul(experiment.optimizations.matmul).path);
    session.control().set(kKey, facts.dump());
  }
  return Json::parse(session.control().get(kKey));
}

Loader training_loader(Trial& trial, const run::RankSession& session) {
  seed_draws(session, Draws::kData, 0);
  return trial.training_loader();
}

std::map<std::string, std::string> tied_names(const torch::nn::Module& model) {
  std::map<std::string, std::string> tied;
  for (const auto& parameter : distinct_parameters(model)) {
    for (std::size_t i = 1; i < parameter.names.size(); ++i) tied[parameter.names[i]] = parameter.names.front();
  }
  return tied;
}

}  // namespace

TrainingLoop::TrainingLoop(Trial& trial, TrialContext& context, run::RankSession& session, TrainingStep& step,
                           std::unique_ptr<StepGraph> graph, std::function<void()> save)
    : trial_(trial),
      context_(context),
      session_(session),
      step_(step),
      recorder_(session.recorder()),
      experiment_(session.experiment()),
      loader_(training_loader(trial, session)),
      feed_(context.device()),
      sync_debug_(context.device()),
      device_profile_(context.device(), recorder_, session.clock(), experiment_.profiling.sync_timings),
      validation_(trial, context, session),
      metrics_("training", session.control(), session.communicator()),
      save_(std::move(save)),
      progress_(session),
      graph_(std::move(graph)),
      deep_window_(session, context.device().is_cuda(), [this] { device_profile_.settle(step_.in_flight()); }),
      counted_batches_(session, context.device().is_cuda()),
      global_batch_(session.batch_per_rank() * session.world().size) {
  if (!loader_) throw ConfigError("training_loader() returned nothing", "return context.loader(data set)");
  loader_->seed_with([this](std::int64_t batch) {  // of the epoch
    seed_draws(session_, Draws::kData, batches_ - epoch_batches_ + batch + 1);
  });
  if (session.mock().loader) loader_ = repeat_first_batch(std::move(loader_));
  find_lengths();
  if (session_.mock().any()) return;
  facts_ = facts_for_resume(session_, *loader_);
  checkpoints_.emplace(
      session_, step_,
      Checkpoints::Options{.period = checkpoint_period_, .tied = tied_names(*context_.wrapped().model), .run = facts_},
      [this](StateVisitor& visitor) { visit(visitor); });
  step_.before_update([this] {
    const bool due = checkpoints_->is_due(batches_ + 1, step_.checkpoint_wanted(), step_.announcement_rounds());
    if (due && !step_.saver_busy()) checkpoints_->prepare();
  });
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
  checkpoint_period_ = length_in_batches(experiment_.min_checkpoint_period, "min_checkpoint_period");
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
  seed(Draws::kEpoch);
  loader_->start_epoch(epoch);
}

void TrainingLoop::visit(StateVisitor& visitor) {
  if (!visitor.replaces()) {
    // What has been asked of the device is read, and metrics that are due are written: they are part of metrics.jsonl.
    step_.in_flight().finish_all();
    finish_training_metrics(/*all=*/true);
    for (const auto& [metrics, samples] : unread_metrics_) metrics_.add(metrics, samples);
    unread_metrics_.clear();
  }
  visitor.number("batches", batches_);
  visitor.number("epoch", epoch_);
  visitor.number("epoch_batches", epoch_batches_);
  std::int64_t metrics_bytes = session_.metrics_bytes();
  visitor.number("due_is_open", due_is_open_);
  visitor.number("metrics_bytes", metrics_bytes);
  if (visitor.replaces()) session_.cut_metrics(metrics_bytes);
  visitor.part("metrics", metrics_);
  visitor.part("validation", validation_);
  TrialStateEntries trial(trial_);
  visitor.part("trial", trial);
  visitor.part("step", step_);
}

bool TrainingLoop::epoch_is_full() const {
  // Only a source without a length of its own is cut to records_per_epoch; the others end by themselves.
  return !loader_->batches_per_epoch() && batches_per_epoch_ && epoch_batches_ >= *batches_per_epoch_;
}

TrainingLoop::End TrainingLoop::run() {
  // A part that the trial has put into evaluation mode (a frozen batch norm) stays there.
  if (torch::nn::Module& model = *context_.wrapped().model; !model.is_training()) model.train();
  if (session_.resume_from().empty()) {
    begin_anew();
  } else {
    resume();
  }
  progress_.start({batches_, total_batches_.value_or(0), epoch_, epoch_batches_, batches_per_epoch_.value_or(0)});
  Outcome outcome = total_batches_ && batches_ >= *total_batches_ ? Outcome::kDone : Outcome::kGoOn;
  while (outcome == Outcome::kGoOn) outcome = run_round();
  conclude(outcome == Outcome::kStopped);
  device_profile_.settle(step_.in_flight());
  recorder_.mark(profile::RunMark::kLoopEnd);
  deep_window_.finish(batches_);
  counted_batches_.finish();
  if (checkpoints_) saved_ = checkpoints_->finish();
  return {outcome == Outcome::kStopped, saved_};
}

void TrainingLoop::begin_anew() {
  if (!session_.mock().any()) {
    if (!experiment_.perform_initial_validation) {
      validation_.check_metric();
    } else {
      validation_.run(0, 0);
    }
  }
  start_epoch(0);
}

void TrainingLoop::resume() {
  if (session_.mock().any()) throw ConfigError("a mock run cannot go on from a checkpoint", "leave one of both out");
  const OpenCheckpoint checkpoint(session_);
  StateReader reader(checkpoint.folder(), session_.world().rank, session_.world().size);
  reader.restore([this](StateVisitor& visitor) { visit(visitor); });
  session_.control().barrier("train/resumed");  // nobody writes shared memory that another still restores
  tell_of_resume(session_, reader, facts_, batches_, epoch_);
  // What was the best by another metric is no measure for this one.
  const Json metric_before = reader.about().at("run").value("metric", facts_["metric"]);
  if (metric_before != facts_["metric"]) validation_.forget_best();
  seed(Draws::kEpoch);
  loader_->start_epoch_at(epoch_, epoch_batches_);
  if (checkpoints_) checkpoints_->resumed_at(batches_);
  if (std::exchange(due_is_open_, false)) do_what_is_due(/*stepped=*/true);
}

TrainingLoop::Outcome TrainingLoop::run_round() {
  deep_window_.before_step(batches_ + 1);
  recorder_.begin_step(batches_ + 1);
  session_.set_step(batches_ + 1);

  // 1. The batch. A rank whose data has ended takes part in the exchange with nothing to give until all have ended.
  std::optional<Batch> batch;
  {
    const PhaseScope phase(recorder_, Phase::kDataloaderNext);
    seed(Draws::kData);
    if (!epoch_is_full()) batch = loader_->next();
    if (batch) record_loader(*batch);
  }
  // A trace shows operators and phases, of which a graph shows none.
  const bool fits_graph = graph_ && batch && !deep_window_.is_open() && graph_->fits(*batch);
  step_.announce(batch.has_value(), {.stop = session_.stop_requested(),
                                     .saver_busy = checkpoints_ && checkpoints_->saver_busy(),
                                     .wants_checkpoint = checkpoints_ && checkpoints_->wants_one(),
                                     .fits_graph = fits_graph,
                                     .trace = deep_window_.wanted(batches_ + 1, step_.announcement_rounds())});
  if (!batch) {
    const Round round = step_.agree();
    if (round.active == 0) return end_of_epoch(round);
  }

  // 2. Forward and backward, buckets leaving as they fill; 3. the exchange; 4. the optimizer.
  bool stepped = session_.mock().train;
  if (!session_.mock().train) {
    const SyncDebug::Scope no_waits(sync_debug_, batches_ + 1);
    if (batch) {
      const PhaseScope phase(recorder_, Phase::kToDevice);
      feed_.move(*batch);
    }
    if (batch) {
      seed(Draws::kBeforeBatch);
      trial_.before_batch(*batch);
    }
    const bool as_graph = fits_graph && step_.agree().graphs == session_.world().size;
    stepped = (as_graph && step_as_graph(*batch)) || step_eagerly(batch);
  }
  ++batches_;
  ++epoch_batches_;
  progress_.batch_done();

  // 5. What is due now and then.
  const bool last = total_batches_ && batches_ == *total_batches_;
  const bool stopped = stepped && step_.stop_is_due();
  if (last || stopped) {
    due_is_open_ = !last || step_.window_is_open();
    conclude(stopped && !last);
    progress_.leave_out_pause();
  } else {
    do_what_is_due(stepped);
  }
  {
    const PhaseScope phase(recorder_, Phase::kCallbacks);
    const Metrics* latest = unread_metrics_.empty() ? nullptr : &unread_metrics_.back().first;
    progress_.update({batches_, total_batches_.value_or(0), epoch_, epoch_batches_, batches_per_epoch_.value_or(0)},
                     global_batch_, latest);
  }
  recorder_.end_step({batch ? batch->samples : 0, stepped && step_.synchronised(), epoch_});
  deep_window_.after_step(batches_, step_.take_trace_window());
  counted_batches_.after_step();
  return last ? Outcome::kDone : stopped ? Outcome::kStopped : Outcome::kGoOn;
}

void TrainingLoop::do_what_is_due(bool stepped) {
  if (batches_ % experiment_.scheduling_unit == 0) begin_training_metrics();
  finish_training_metrics();
  Validation::Result validated;
  if (!session_.mock().any() && validation_period_ > 0 && batches_ % validation_period_ == 0) {
    step_.synchronise();
    finish_training_metrics(/*all=*/true);
    validated = validate();
    progress_.leave_out_pause();
  }
  if (stepped && checkpoints_ && !std::exchange(checkpoints_ready_, true)) {
    const PhaseScope phase(recorder_, Phase::kCheckpoint);
    checkpoints_->make_ready();
    progress_.leave_out_pause();
  }
  if (!checkpoints_ || !stepped) return;
  if (!checkpoints_->is_due(batches_, step_.checkpoint_wanted(), step_.announcement_rounds())) return;
  step_.saver_busy() ? checkpoints_->delay(batches_) : take_checkpoint("period", validated, /*may_wait=*/false);
}

Validation::Result TrainingLoop::validate() {
  const auto result = validation_.run(batches_, epoch_);
  if (!result || !checkpoints_) return result.value_or(Validation::Result{});
  using config::CheckpointPolicy;
  const CheckpointPolicy policy = experiment_.checkpoint_policy;
  const bool keep = policy == CheckpointPolicy::kAll || (policy == CheckpointPolicy::kBest && result->best);
  if (keep) take_checkpoint("validation", *result, /*may_wait=*/true);
  return *result;
}

void TrainingLoop::take_checkpoint(const char* reason, const Validation::Result& validated, bool may_wait, bool last) {
  const PhaseScope phase(recorder_, Phase::kCheckpoint);
  checkpoints_->save({batches_, epoch_, reason, validated.metric}, may_wait, last);
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

bool TrainingLoop::step_eagerly(const std::optional<Batch>& batch) {
  step_.begin_batch();
  if (batch) train_batch(*batch);
  return step_.end_batch();
}

bool TrainingLoop::step_as_graph(const Batch& batch) {
  const auto metrics = graph_->step(
      batch, [this](const Batch& places) { return call_trial(places); }, [this] { seed(Draws::kTraining); });
  if (!metrics) return false;
  keep_metrics(*metrics, batch.samples);
  return true;
}

void TrainingLoop::seed(Draws draws) {
  seed_draws(session_, draws, draws == Draws::kEpoch ? epoch_ : batches_ + 1);
}

void TrainingLoop::train_batch(const Batch& batch) {
  seed(Draws::kTraining);
  const PhaseScope phase(recorder_, Phase::kForward);
  Metrics metrics;
  {
    const auto counting = counted_batches_.begin();
    metrics = call_trial(batch);
  }
  counted_batches_.end(batches_ + 1, batch.samples);
  keep_metrics(std::move(metrics), batch.samples);
  context_.warn_of_unread_keys();
}

Metrics TrainingLoop::call_trial(const Batch& batch) {
  const Autocast autocast(autocast_type(experiment_.optimizations.mixed_precision), context_.device());
  bool ran_backward = false;
  context_.wrapped().backward = [&](const at::Tensor& loss) {
    const Autocast::Pause in_full(autocast);
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
  return metrics;
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
  step_.write_reports();
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
    Json line = {{"kind", "training"},
                 {"batch", due.batch},
                 {"epoch", due.epoch},
                 {"samples", reduced.samples},
                 {"optimizer_steps", due.optimizer_steps},
                 {"learning_rate", due.learning_rate}};
    if (const auto norm = step_.gradient_norms().of(due.batch)) line["gradient_norm"] = number_or_text(*norm);
    line["metrics"] = numbers_or_texts(reduced.means);
    session_.write_metrics(line);
  }
}

void TrainingLoop::conclude(bool stopped) {
  if (concluded_) return;
  concluded_ = true;
  if (stopped) session_.begin_last_save();
  // What is left of a window may bring one more update: nothing may be copied then into memory that a saver reads.
  step_.before_update({});
  const bool goes_on_from_here = stopped || step_.window_is_open();
  if (goes_on_from_here && checkpoints_) {
    take_checkpoint(stopped ? "stop" : "end", {}, /*may_wait=*/true, /*last=*/true);
  }
  step_.flush();
  step_.report();
  {
    const PhaseScope phase(recorder_, Phase::kCheckpoint);
    save_();
  }
  begin_training_metrics();
  finish_training_metrics(/*all=*/true);
  if (stopped || session_.mock().any()) return;
  const auto validated = validation_.run(batches_, epoch_);
  if (checkpoints_ && !goes_on_from_here)
    take_checkpoint("end", validated.value_or(Validation::Result{}), /*may_wait=*/true, /*last=*/true);
}

}  // namespace dtrain::train
