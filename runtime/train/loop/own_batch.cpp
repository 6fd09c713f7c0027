// The batches of a program that has the loop itself: the work of run_round() in parts, between which the program
// computes.
#include <utility>

#include "dtrain/config/experiment.h"
#include "loop/training_loop.h"
#include "model/precision.h"

namespace dtrain::train {

using profile::Phase;

struct TrainingLoop::OwnBatch {
  OwnBatch(std::optional<at::ScalarType> type, c10::Device device, CountedBatches& counted)
      : autocast(std::in_place, type, device), counting(counted.begin()) {}

  std::optional<Autocast> autocast;  // lives from the forward pass to the update
  std::optional<OperatorCounter::Scope> counting;
  Batch batch;
  bool has_begun = false;  // backward() has been called
  bool stepped = false;
};

void TrainingLoop::expect_batch(std::int64_t number) {
  if (!has_record_) begin_record();
  session_.recorder().switch_to(Phase::kDataloaderNext);
  seed_draws(session_, Draws::kData, position_.batches - position_.epoch_batches + number + 1);
}

void TrainingLoop::open_batch(std::int64_t repeated) {
  if (!has_record_) begin_record();
  own_ = std::make_unique<OwnBatch>(autocast_type(session_.experiment().optimizations.mixed_precision),
                                    context_.device(), measured_.counted_batches);
  context_.around_the_loop().batch = position_.batches + 1;
  context_.around_the_loop().logged.emplace();
  step_.begin_forward();
  // Each pass that is opened draws other numbers, so that passes are not alike in a loop that only evaluates.
  seed_draws(session_, Draws::kTraining, position_.batches + 1 + (repeated << 40));
  session_.recorder().switch_to(Phase::kForward);
}

void TrainingLoop::leave_batch() {
  own_->counting.reset();
  measured_.counted_batches.cancel();
  step_.leave_forward();
  context_.around_the_loop().logged.reset();
  own_.reset();
  session_.recorder().switch_to(Phase::kOther);
}

void TrainingLoop::backward(const at::Tensor& loss, const BackwardOptions& options, std::int64_t samples,
                            std::int64_t place) {
  if (!std::exchange(own_->has_begun, true)) {
    own_->batch.samples = samples;
    own_->batch.place = place;
    record_loader(own_->batch);
    step_.announce(/*has_batch=*/true, wishes(/*fits_graph=*/false), place);
    step_.begin_batch();
  }
  {
    const Autocast::Pause in_full(*own_->autocast);
    step_.backward(loss, options);
  }
  if (!options.more_follows) {
    context_.around_the_loop().why_no_collective = "gradients are being exchanged until the optimizer step";
  }
  session_.recorder().switch_to(Phase::kTrainBatch);
}

void TrainingLoop::add_samples(std::int64_t samples) {
  own_->batch.samples += samples;
}

void TrainingLoop::drop_batch() {
  own_->counting.reset();
  measured_.counted_batches.cancel();
  own_->autocast.reset();
  step_.abandon_batch();
  context_.around_the_loop().logged.reset();
  context_.around_the_loop().why_no_collective.clear();
  own_.reset();
  session_.recorder().switch_to(Phase::kOther);
}

void TrainingLoop::update(Metrics metrics) {
  own_->counting.reset();
  measured_.counted_batches.end(position_.batches + 1, own_->batch.samples);
  returned_ = metrics;
  metrics_.keep(std::move(metrics), own_->batch.samples);
  context_.warn_of_unread_keys();
  own_->autocast.reset();
  own_->stepped = step_.end_batch();
  ++position_.batches;
  ++position_.epoch_batches;
  progress_.batch_done();
  context_.around_the_loop().why_no_collective.clear();
  callbacks_.tell<&Callback::after_batch>(returned_);
  shared_buffers_.share();
  session_.recorder().switch_to(Phase::kOther);
}

TrainingLoop::Outcome TrainingLoop::end_batch() {
  keep_logged(own_->batch);
  context_.around_the_loop().logged.reset();
  const std::shared_ptr<OwnBatch> ended = std::move(own_);
  return end_round(ended->batch.samples, ended->stepped);
}

void TrainingLoop::continue_batch() {
  session_.recorder().switch_to(Phase::kForward);
}

}  // namespace dtrain::train
