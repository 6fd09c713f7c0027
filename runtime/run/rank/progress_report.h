// Rank 0's progress: estimates the remaining time and shows the progress a few times a second. The training thread
// makes all calls.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "dtrain/base/clock.h"
#include "dtrain/run/rank_session.h"

namespace dtrain::run {

// Estimates the remaining time from the rate of batches since the first report.
class RemainingTime {
 public:
  // Negative: not known yet.
  double seconds_left(const Progress& progress, Nanoseconds now);

 private:
  std::optional<Nanoseconds> first_time_;
  std::int64_t first_batch_ = 0;
};

class ProgressReport {
 public:
  // `show` sends the progress to the launcher, or to the screen if there is none.
  ProgressReport(const Clock& clock, std::function<void(const Progress&)> show)
      : clock_(clock), show_(std::move(show)) {}
  void report(const Progress& progress);

 private:
  const Clock& clock_;
  const std::function<void(const Progress&)> show_;
  Nanoseconds shown_{0};
  RemainingTime remaining_;
};

}  // namespace dtrain::run
