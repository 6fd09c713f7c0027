#include "loop/progress_meter.h"

namespace dtrain::train {

namespace {
constexpr Nanoseconds kInterval = std::chrono::milliseconds(500);
}

void ProgressMeter::start() {
  throughput_.start(position_.batches);
  shown_ = session_.clock().monotonic();
}

void ProgressMeter::set_loss(const Metrics& metrics) {
  const auto loss = metrics.find("loss");
  if (loss != metrics.end()) loss_ = loss->second.value();
}

void ProgressMeter::update(const Metrics* latest) {
  if (session_.world().rank != 0) return;
  const Nanoseconds now = session_.clock().monotonic();
  const std::int64_t total = lengths_.total_batches.value_or(0);
  const bool last = total > 0 && position_.batches == total;
  if (now - shown_ < kInterval && !last && shown_any_) return;
  if (latest) set_loss(*latest);
  run::Progress progress;
  progress.batch = position_.batches;
  progress.total_batches = total;
  progress.epoch = position_.epoch;
  progress.epoch_batch = position_.epoch_batches;
  progress.batches_per_epoch = lengths_.batches_per_epoch.value_or(0);
  progress.loss = loss_;
  progress.samples_per_second = throughput_.take(position_.batches) * static_cast<double>(lengths_.global_batch);
  session_.report_progress(progress);
  shown_ = now;
  shown_any_ = true;
}

}  // namespace dtrain::train
