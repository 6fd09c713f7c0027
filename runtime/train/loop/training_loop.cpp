#include "loop/training_loop.h"

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/pulse.h"
#include "dtrain/config/experiment.h"
#include "loop/logical_batches.h"
#include "model/precision.h"

namespace dtrain::train {
namespace {

using profile::Phase;
using profile::PhaseScope;

// Makes the loader of the training data, whose random numbers are those of the batch that comes next.
Loader training_loader(Trial& trial, const rank::RankSession& session, const Position& position) {
  seed_draws_alike(session, Draws::kData, 0);  // a split is the same on all ranks
  Loader loader = trial.training_loader();
  if (!loader) throw ConfigError("training_loader() returned nothing", "return context.loader(data set)");
  require_logical_batches(session, loader, "training_loader");
  loader->seed_with([&session, &position](std::int64_t batch) {  // number within the epoch
    seed_draws(session, Draws::kData, position.batches - position.epoch_batches + batch + 1);
  });
  return session.mock().loader ? repeat_first_batch(std::move(loader)) : loader;
}

// True if the source on any rank says that no epoch follows. Collective if sources know that.
bool training_is_over(rank::RankSession& session, const BatchSource& source, const Position& position) {
  const std::optional<bool> goes_on = source.has_next_epoch();
  if (!goes_on) return false;
  const std::string key = "train/next-epoch/" + std::to_string(position.batches);
  const std::vector<std::string> all = session.control().gather(key, *goes_on ? "yes" : "no");
  return std::find(all.begin(), all.end(), "no") != all.end();
}

// Identifies a buffer's content: the memory is held, so that a buffer that the model replaces has another memory; a
// buffer that is written has another version.
struct BufferVersion {
  c10::Storage memory;
  std::int64_t version;
  bool operator==(const BufferVersion& other) const {
    return memory.unsafeGetStorageImpl() == other.memory.unsafeGetStorageImpl() && version == other.version;
  }
};

std::vector<BufferVersion> versions_of_buffers(const torch::nn::Module& model) {
  std::vector<BufferVersion> versions;
  for (const at::Tensor& buffer : model.buffers()) {
    if (buffer.defined() && buffer.has_storage() && !buffer.is_inference()) {
      versions.push_back({buffer.storage(), static_cast<std::int64_t>(buffer._version())});
    }
  }
  return versions;
}

}  // namespace

TrainingLoop::TrainingLoop(Trial& trial, TrialContext& context, rank::RankSession& session, TrainingStep& step,
                           std::unique_ptr<StepGraph> graph, std::function<void()> save,
                           std::filesystem::path begins_with)
    : trial_(trial),
      context_(context),
      session_(session),
      step_(step),
      loader_(training_loader(trial, session, position_)),
      skipped_(session, "training"),
      feed_(context.device()),
      callbacks_(session, context, position_),
      stopping_(EarlyStop::settings_of(session, context.around_the_loop().early_stopping)),
      early_stop_(session, stopping_),
      plateau_(session, context.wrapped().plateau, step.optimizer()),
      validation_(trial, context, session, step, stopping_ ? stopping_->metric : std::string()),
      beside_(session),
      lengths_(find_lengths(session, *loader_)),
      progress_(session, lengths_, position_),
      metrics_(session, step, position_, progress_),
      graph_(std::move(graph)),
      save_(std::move(save)),
      begins_with_(std::move(begins_with)),
      measured_{.sync_debug = SyncDebug(context.device()),
                .device_profile = DeviceProfile(context.device(), session.recorder(), session.clock(),
                                                session.experiment().profiling.sync_timings),
                .deep_window = DeepWindow(session, context.device().is_cuda(),
                                          [this] { measured_.device_profile.settle(step_.in_flight()); }),
                .counted_batches = CountedBatches(session, context.device().is_cuda())},
      checkpoints_(
          session, step, *context.wrapped().model, trial.state_owner(), *loader_, lengths_, position_,
          [this] {
            context_.around_the_loop().wants_checkpoint = false;
            callbacks_.tell<&Callback::on_checkpoint>();
          },
          [this](StateVisitor& visitor) { visit(visitor); }),
      shared_buffers_(*context.wrapped().model, session.communicator(), session.device_communicator()) {}

TrainingLoop::End TrainingLoop::end(Outcome outcome) {
  measured_.device_profile.settle(step_.in_flight());
  session_.recorder().mark(profile::RunMark::kLoopEnd);
  if (outcome == Outcome::kStopped) save_();  // the last checkpoint is under way; otherwise conclude() has saved
  callbacks_.tell<&Callback::on_training_end>();
  measured_.deep_window.finish(position_.batches);
  measured_.counted_batches.finish();
  return {.stopped = outcome == Outcome::kStopped, .saved = checkpoints_.make_durable()};
}

void TrainingLoop::start_epoch(std::int64_t epoch) {
  position_.epoch = epoch;
  position_.epoch_batches = 0;
  Pulse::own().begin_epoch(position_.batches + 1);
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
  if (session_.logical().virtuals) return run_virtual_round();
  profile::Recorder& recorder = session_.recorder();
  const std::int64_t number = position_.batches + 1;
  begin_record();

  // 1. The batch. A rank whose data has ended takes part in the exchange with empty gradients until all have ended.
  std::optional<Batch> batch;
  {
    const PhaseScope phase(recorder, Phase::kDataloaderNext);
    seed(Draws::kData);
    if (!epoch_is_full()) batch = loader_->next();
    if (batch) record_loader(*batch);
  }
  // A trace shows operators and phases; a graph would show none.
  const double share = batch ? share_of(*batch) : 1;
  const bool fits_graph = graph_ && batch && share == 1 && !measured_.deep_window.is_open() && graph_->fits(*batch);
  Announcement mine = wishes(fits_graph);
  mine.counts_for_all = batch && batch->global_samples > 0;
  step_.announce(batch.has_value(), mine, batch ? batch->place : -1);
  if (!batch) {
    const Round round = step_.agree();
    if (round.active == 0) return end_of_epoch(round);
  }

  // 2. Forward and backward, in which buckets leave as they fill; 3. the exchange; 4. the optimizer.
  bool stepped = session_.mock().train;
  std::optional<LogScope> logging;
  if (!session_.mock().train) {
    if (batch) logging.emplace(context_);
    const SyncDebug::Scope no_waits(measured_.sync_debug, number);
    if (batch) {
      const PhaseScope phase(recorder, Phase::kToDevice);
      feed_.move(*batch);
    }
    if (batch) prepare_batch(*batch);
    const bool as_graph = fits_graph && step_.agree().graphs == session_.world().size;
    stepped = (as_graph && step_as_graph(*batch)) || step_eagerly(batch);
  }
  ++position_.batches;
  ++position_.epoch_batches;
  progress_.batch_done();
  if (logging) follow_batch(*batch);
  logging.reset();
  return end_round(batch ? batch->samples : 0, stepped);
}

void TrainingLoop::begin_record() {
  const std::int64_t number = position_.batches + 1;
  measured_.deep_window.before_step(number);
  session_.recorder().begin_step(number);
  session_.set_step(number);
  has_record_ = true;
}

Announcement TrainingLoop::wishes(bool fits_graph) {
  Announcement mine{.stop = session_.stop_requested()};
  mine.saver_busy = checkpoints_.saver_busy();
  mine.wants_checkpoint = checkpoints_.wants_one(context_.around_the_loop().wants_checkpoint);
  mine.generation_busy = checkpoints_.generation_busy();
  mine.wants_generation = checkpoints_.wants_generation();
  mine.fits_graph = fits_graph;
  mine.trace = measured_.deep_window.wanted(position_.batches + 1, step_.announcement_rounds());
  return mine;
}

// 5. The periodic work.
TrainingLoop::Outcome TrainingLoop::end_round(std::int64_t samples, bool stepped) {
  profile::Recorder& recorder = session_.recorder();
  const std::int64_t number = position_.batches;
  const bool last = !lengths_.source_decides && lengths_.total_batches && number == *lengths_.total_batches;
  const bool stopped = stepped && step_.stop_is_due();
  bool early = false;
  if (last || stopped) {
    position_.due_is_open = !last || step_.window_is_open();
    conclude(stopped && !last);
    if (last) end_last_epoch();
    progress_.leave_out_pause();
  } else {
    do_what_is_due(stepped);
    early = early_stop_.is_due();
    if (early) {
      early_stop_.report(position_.batches);
      conclude(/*stopped=*/false);
      end_last_epoch();
      progress_.leave_out_pause();
    } else {
      checkpoints_.publish_own();
    }
  }
  {
    const PhaseScope phase(recorder, Phase::kCallbacks);
    progress_.update([this] { metrics_.show_losses(); });
  }
  recorder.end_step({{samples}, stepped && step_.synchronised(), position_.epoch});
  has_record_ = false;
  measured_.deep_window.after_step(number, step_.take_trace_window());
  measured_.counted_batches.after_step();
  return last || early ? Outcome::kDone : stopped ? Outcome::kStopped : Outcome::kGoOn;
}

void TrainingLoop::prepare_batch(const Batch& batch) {
  context_.around_the_loop().batch = position_.batches + 1;
  callbacks_.tell<&Callback::before_batch>(batch);
  seed(Draws::kBeforeBatch);
  trial_.before_batch(batch);
}

void TrainingLoop::follow_batch(const Batch& batch) {
  context_.around_the_loop().why_no_collective.clear();
  callbacks_.tell<&Callback::after_batch>(returned_);
  keep_logged(batch);
}

void TrainingLoop::keep_logged(const Batch& batch) {
  Metrics& logged = *context_.around_the_loop().logged;
  SkippedSamples::add_metric(*loader_, batch, logged);
  refuse_both(returned_, logged, "train_batch()");
  metrics_.keep_logged(logged, batch.samples);
}

bool TrainingLoop::step_eagerly(std::optional<Batch>& batch) {
  step_.begin_batch();
  if (batch) train_batch(*batch);
  return step_.end_batch();
}

bool TrainingLoop::step_as_graph(const Batch& batch) {
  const auto metrics = graph_->step(
      batch, [this](const Batch& places) { return call_trial_for_graph(places); }, [this] { seed(Draws::kTraining); });
  context_.around_the_loop().why_no_collective.clear();
  if (!metrics) return false;
  returned_ = *metrics;
  metrics_.keep(*metrics, batch.samples);
  return true;
}

void TrainingLoop::train_batch(Batch& batch) {
  seed(Draws::kTraining);
  const PhaseScope phase(session_.recorder(), Phase::kForward);
  Metrics metrics;
  {
    const auto counting = measured_.counted_batches.begin();
    metrics = call_trial(batch);
  }
  batch.samples += std::exchange(context_.around_the_loop().added_samples, 0);
  measured_.counted_batches.end(position_.batches + 1, batch.samples);
  returned_ = metrics;
  metrics_.keep(std::move(metrics), batch.samples);
  context_.warn_of_unread_keys();
}

double TrainingLoop::share_of(const Batch& batch) const {
  // With local steps a rank steps with the mean over its own samples.
  if (batch.global_samples == 0 || session_.experiment().optimizations.local_sgd) return 1;
  return static_cast<double>(batch.samples * session_.logical().size) / static_cast<double>(batch.global_samples);
}

Metrics TrainingLoop::call_trial(const Batch& batch) {
  const Autocast autocast(autocast_type(session_.experiment().optimizations.mixed_precision), context_.device());
  bool ran_backward = false;
  const double share = share_of(batch);
  context_.wrapped().backward = [&](const at::Tensor& loss, const BackwardOptions& options) {
    const Autocast::Pause in_full(autocast);
    step_.backward(share == 1 || options.weight ? loss : loss * share, options);
    ran_backward = true;
    // Ranks start buckets at different moments, and all operations need one order. While more follows, none has begun.
    if (!options.more_follows) {
      context_.around_the_loop().why_no_collective = "gradients are being exchanged until the optimizer step";
    }
    session_.recorder().switch_to(Phase::kTrainBatch);  // the rest of train_batch() is neither forward nor backward
  };
  context_.wrapped().step = [&] {
    const Autocast::Pause in_full(autocast);  // autocast keeps no copy of the old parameters
    step_.step_models();
    context_.around_the_loop().why_no_collective.clear();
  };
  Metrics metrics = trial_.train_batch(batch);
  context_.wrapped().backward = nullptr;
  context_.wrapped().step = nullptr;
  if (!ran_backward) {
    throw Error("train_batch() returned without calling context.backward()",
                "call context.backward(loss) instead of loss.backward(); to skip a batch, use a loss multiplied by 0");
  }
  return metrics;
}

Metrics TrainingLoop::call_trial_for_graph(const Batch& places) {
  context_.around_the_loop().why_no_collective = "the step is recorded as a CUDA graph";
  const std::size_t logged = context_.around_the_loop().logged->size();
  const std::int64_t pictures = context_.around_the_loop().logged_for_tensorboard;
  Metrics metrics = call_trial(places);
  if (context_.around_the_loop().logged->size() != logged) {
    throw Error("train_batch() calls context.log(), which a graph would not repeat");
  }
  if (context_.around_the_loop().logged_for_tensorboard != pictures) {
    throw Error("train_batch() calls context.log_image() or log_histogram(), which a graph would not repeat");
  }
  return metrics;
}

void TrainingLoop::record_loader(const Batch& batch) {
  skipped_.see(batch);
  // A mock loader, and most loaders of a program's own, do not measure what reading has cost.
  const bool measured = batch.fetch_ns >= 0 || !batch.skipped.empty();
  session_.recorder().loader(
      {.queue_depth = loader_->queue_depth(),
       .workers = loader_->workers(),
       .fetch_ns = batch.fetch_ns,
       .pinned = !context_.device().is_cpu() && !batch.tensors.empty() && batch.tensors.front().is_pinned(),
       .usage = {batch.usage, std::ssize(batch.skipped), measured ? 1 : 0}});
}

std::optional<double> TrainingLoop::validate() {
  if (auto result = validation_.run(position_.batches, position_.epoch)) {
    validated_ = std::move(*result);
    validated_batch_ = position_.batches;
    use(validated_, position_.batches);
  }
  return validated_batch_ == position_.batches ? validated_.metric : std::nullopt;
}

void TrainingLoop::use(const Validation::Result& result, std::int64_t batch) {
  early_stop_.see(result.metrics, batch);
  if (result.metric) plateau_.see(*result.metric, batch);
  callbacks_.tell<&Callback::on_validation_end>(result.metrics);
}

void TrainingLoop::validate_beside() {
  accept_validation();
  if (early_stop_.is_due()) return;  // the last validation and the last checkpoint follow
  validation_.share_buffers();
  beside_.ask(position_.batches);
  checkpoints_.take_for_validation();
}

void TrainingLoop::accept_validation() {
  if (!beside_.awaits()) return;
  BesideValidation::Answer answer;
  {
    const PhaseScope phase(session_.recorder(), Phase::kValidation);
    checkpoints_.make_durable();
    answer = beside_.take();
  }
  const Validation::Result result = validation_.accept(answer.reduced, answer.batch, answer.epoch);
  if (session_.world().rank == 0) checkpoints_.note_validation(answer.checkpoint, answer.batch, result.metric);
  use(result, answer.batch);
}

void TrainingLoop::do_what_is_due(bool stepped) {
  if (position_.batches % session_.experiment().scheduling_unit == 0) metrics_.begin();
  metrics_.finish();
  std::optional<double> metric;
  const std::int64_t period = lengths_.validation_period;
  if (!session_.mock().any() && period > 0 && position_.batches % period == 0) {
    step_.synchronise();
    metrics_.finish_all();
    const bool beside = session_.experiment().validates_beside && validation_.has_data();
    if (beside) validate_beside();
    const bool is_new = validated_batch_ != position_.batches;
    if (!beside) metric = validate();
    // Where training ends early, the last checkpoint follows.
    if (is_new && validated_batch_ == position_.batches && !early_stop_.is_due()) {
      checkpoints_.after_validation(validated_);
    }
    progress_.leave_out_pause();
  }
  if (!stepped) return;
  if (checkpoints_.make_ready()) progress_.leave_out_pause();
  if (early_stop_.is_due()) return;
  checkpoints_.take_if_due(metric);
  checkpoints_.take_generation_if_due();
}

TrainingLoop::Outcome TrainingLoop::end_of_epoch(const Round& round) {
  const bool is_over = training_is_over(session_, *loader_, position_);
  if (position_.epoch_batches == 0 && !is_over) {
    throw DataError("epoch " + std::to_string(position_.epoch) + " has no batch on any rank",
                    "the training data is empty, or its source gives nothing after the first epoch");
  }
  const bool is_last_epoch =
      is_over || (!lengths_.source_decides && !lengths_.total_batches && position_.epoch + 1 >= lengths_.epochs);
  if (round.stop || is_last_epoch) {
    conclude(round.stop);
    if (!round.stop) callbacks_.tell<&Callback::on_epoch_end>();
    return round.stop ? Outcome::kStopped : Outcome::kDone;
  }
  callbacks_.tell<&Callback::on_epoch_end>();
  start_epoch(position_.epoch + 1);
  return Outcome::kGoOn;
}

void TrainingLoop::end_last_epoch() {
  if (lengths_.batches_per_epoch == position_.epoch_batches) callbacks_.tell<&Callback::on_epoch_end>();
}

void TrainingLoop::conclude(bool stopped) {
  if (stopped)
    session_.begin_last_save();
  else
    accept_validation();
  // The rest of a window may bring one more update, which may not copy into memory that a saver reads.
  checkpoints_.end_copies_by_updates();
  const bool goes_on_from_here = stopped || step_.window_is_open();
  if (goes_on_from_here) {
    const bool is_validated = validated_batch_ == position_.batches;
    checkpoints_.take_last(stopped ? "stop" : "end", is_validated ? validated_.metric : std::nullopt);
  }
  step_.flush();
  step_.report();
  metrics_.begin();
  metrics_.finish_all();
  if (stopped || session_.mock().any()) return;
  {
    const PhaseScope phase(session_.recorder(), Phase::kCheckpoint);
    save_();  // the trained weights are saved, whatever fails from here on
  }
  const auto before = versions_of_buffers(*context_.wrapped().model);
  const std::optional<double> metric = validate();
  std::uint8_t has_changed = versions_of_buffers(*context_.wrapped().model) == before ? 0 : 1;
  session_.communicator().broadcast(&has_changed, 1, comm::DataType::kUint8, 0).wait();
  if (has_changed) save_();  // the model has written buffers in its validation
  if (!goes_on_from_here) checkpoints_.take_last("end", metric);
}

}  // namespace dtrain::train
