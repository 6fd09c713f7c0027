#include "loop/progress_meter.h"

namespace dtrain::train {

namespace {
constexpr Nanoseconds kInterval = std::chrono::milliseconds(500);
}

void ProgressMeter::start(const Position& position) {
  throughput_.start(position.batch);
  shown_ = session_.clock().monotonic();
}

void ProgressMeter::set_loss(const Metrics& metrics) {
  const auto loss = metrics.find("loss");
  if (loss != metrics.end()) loss_ = loss->second.value();
}

void ProgressMeter::update(const Position& position, std::int64_t samples_per_batch, const Metrics* latest) {
  if (session_.world().rank != 0) return;
  const Nanoseconds now = session_.clock().monotonic();
  const bool last = position.total_batches > 0 && position.batch == position.total_batches;
  if (now - shown_ < kInterval && !last && shown_any_) return;
  if (latest) set_loss(*latest);
  run::Progress progress;
  progress.batch = position.batch;
  progress.total_batches = position.total_batches;
  progress.epoch = position.epoch;
  progress.epoch_batch = position.epoch_batch;
  progress.batches_per_epoch = position.batches_per_epoch;
  progress.loss = loss_;
  progress.samples_per_second = throughput_.take(position.batch) * static_cast<double>(samples_per_batch);
  session_.report_progress(progress);
  shown_ = now;
  shown_any_ = true;
}

}  // namespace dtrain::train
