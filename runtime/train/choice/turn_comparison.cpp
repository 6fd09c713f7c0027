#include "choice/turn_comparison.h"

#include "dtrain/base/statistics.h"

namespace dtrain::train {

// Returns second() after this number of steps.
bool TurnComparison::second_at(int steps) {
  return steps > kWarmUpSteps && (steps - kWarmUpSteps) / kStepsOfATurn % 2 == 1;
}

void TurnComparison::go_on_after(int steps) {
  steps_ = steps;
  second_ = second_at(steps);
}

bool TurnComparison::end_step(std::int64_t batch, double milliseconds) {
  if (done_) return false;
  const bool before = second_;
  const int step = steps_++ - kWarmUpSteps;
  if (step < 0) return false;
  if (step % kStepsOfATurn > 0) {
    times_[second_ ? 1 : 0].push_back(milliseconds);
    if (step % kStepsOfATurn == 1 || turns_.empty()) turns_.push_back({second_, batch, batch});
    turns_.back().last_batch = batch;
  }
  second_ = second_at(steps_);
  if (step + 1 == kTurns * kStepsOfATurn) decide();
  return second_ != before;
}

void TurnComparison::decide() {
  done_ = true;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    auto& times = times_[i];
    if (times.empty()) continue;
    // The all-reduce makes the times, and so the decision, the same on every rank.
    communicator_.all_reduce(times.data(), times.size(), comm::DataType::kFloat64, {.op = comm::ReduceOp::kMax}).wait();
    medians_[i] = median_high(times);
  }
  second_ = !times_[0].empty() && !times_[1].empty() && medians_[1] <= medians_[0] * enough_;
}

}  // namespace dtrain::train
