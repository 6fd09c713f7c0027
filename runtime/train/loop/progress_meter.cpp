#include "loop/progress_meter.h"

#include <cmath>

namespace dtrain::train {

namespace {
constexpr Nanoseconds kInterval = std::chrono::milliseconds(500);
constexpr double kKept = 0.95;  // factor of the earlier batches' weight after each batch
}  // namespace

void ProgressMeter::start() {
  throughput_.start(position_.batches);
  shown_ = session_.clock().monotonic();
}

void ProgressMeter::add_loss(const Metrics& metrics) {
  const auto loss = metrics.find("loss");
  if (loss != metrics.end()) add_loss(loss->second.value());
}

void ProgressMeter::add_loss(double loss) {
  loss_ = loss;
  if (!std::isfinite(loss)) return;
  loss_sum_ = kKept * loss_sum_ + loss;
  loss_weight_ = kKept * loss_weight_ + 1;
  loss_ = loss_sum_ / loss_weight_;
}

void ProgressMeter::update(const std::function<void()>& take_losses) {
  if (session_.world().rank != 0) return;
  const Nanoseconds now = session_.clock().monotonic();
  const std::int64_t total = lengths_.total_batches.value_or(0);
  const bool last = total > 0 && position_.batches == total;
  if (now - shown_ < kInterval && !last && shown_any_) return;
  take_losses();
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
