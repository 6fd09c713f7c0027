#include "rank/progress_report.h"

#include <chrono>

namespace dtrain::run {
namespace {

constexpr auto kProgressPeriod = std::chrono::milliseconds(200);

}  // namespace

double RemainingTime::seconds_left(const Progress& progress, Nanoseconds now) {
  if (!first_time_) {
    first_time_ = now;
    first_batch_ = progress.batch;
  }
  const double seconds = to_seconds(now - *first_time_);
  const auto done = static_cast<double>(progress.batch - first_batch_);
  if (done <= 0 || seconds <= 0) return -1;
  return seconds / done * static_cast<double>(progress.total_batches - progress.batch);
}

void ProgressReport::report(const Progress& progress) {
  const Nanoseconds now = clock_.monotonic();
  Progress full = progress;
  full.seconds_left = remaining_.seconds_left(progress, now);
  if (now - shown_ < kProgressPeriod && progress.batch < progress.total_batches) return;
  shown_ = now;
  show_(full);
}

}  // namespace dtrain::run
