#include "progress_meter.h"

#include <limits>

namespace dtrain::train {

namespace {
constexpr Nanoseconds kInterval = std::chrono::milliseconds(500);
}

void ProgressMeter::start(const Position& position) {
  shown_ = session_.clock().monotonic();
  shown_batch_ = position.batch;
  last_batch_ = shown_;
}

void ProgressMeter::leave_out_pause() {
  const Nanoseconds now = session_.clock().monotonic();
  shown_ += now - last_batch_;
  last_batch_ = now;
}

void ProgressMeter::set_loss(const Metrics& metrics) {
  const auto loss = metrics.find("loss");
  if (loss != metrics.end()) loss_ = loss->second.value();
}

void ProgressMeter::update(const Position& position, std::int64_t samples_per_batch, const Metrics* latest) {
  if (session_.world().rank != 0) return;
  const Nanoseconds now = session_.clock().monotonic();
  last_batch_ = now;
  const bool last = position.total_batches > 0 && position.batch == position.total_batches;
  if (now - shown_ < kInterval && !last && shown_batch_ > 0) return;
  if (latest) set_loss(*latest);
  run::Progress progress;
  progress.batch = position.batch;
  progress.total_batches = position.total_batches;
  progress.epoch = position.epoch;
  progress.epoch_batch = position.epoch_batch;
  progress.batches_per_epoch = position.batches_per_epoch;
  progress.loss = loss_.value_or(std::numeric_limits<double>::quiet_NaN());
  const double seconds = to_seconds(now - shown_);
  if (seconds > 0) {
    progress.samples_per_second = static_cast<double>((position.batch - shown_batch_) * samples_per_batch) / seconds;
  }
  session_.report_progress(progress);
  shown_ = now;
  shown_batch_ = position.batch;
}

}  // namespace dtrain::train
