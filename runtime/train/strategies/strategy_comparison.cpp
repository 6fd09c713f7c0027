#include "strategies/strategy_comparison.h"

#include <algorithm>

namespace dtrain::train {

bool StrategyComparison::end_step(std::int64_t batch, double milliseconds) {
  if (done_) return false;
  const bool before = sharded_;
  const int step = steps_++ - kWarmUpSteps;
  if (step < 0) return false;
  if (step % kStepsOfATurn > 0) {
    times_[sharded_ ? 1 : 0].push_back(milliseconds);
    if (step % kStepsOfATurn == 1) turns_.push_back({sharded_, batch, batch});
    turns_.back().last_batch = batch;
  }
  const int next_turn = (step + 1) / kStepsOfATurn;
  sharded_ = next_turn % 2 == 1;
  if (next_turn == kTurns) decide();
  return sharded_ != before;
}

void StrategyComparison::decide() {
  done_ = true;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    auto& times = times_[i];
    // The same on every rank, and so is the decision.
    communicator_.all_reduce(times.data(), times.size(), comm::DataType::kFloat64, {.op = comm::ReduceOp::kMax}).wait();
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    medians_[i] = times[times.size() / 2];
  }
  constexpr double kNoise = 1.01;
  sharded_ = medians_[1] <= medians_[0] * kNoise;
}

}  // namespace dtrain::train
