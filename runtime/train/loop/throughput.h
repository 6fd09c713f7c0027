// Measures batches a second of training, without the work between batches (validation, saving weights). One thread.
#pragma once

#include <cstdint>

#include "dtrain/base/clock.h"

namespace dtrain::train {

class Throughput {
 public:
  explicit Throughput(const Clock& clock) : clock_(clock) {}

  void start(std::int64_t batch) {
    since_ = trained_until_ = clock_.monotonic();
    first_batch_ = batch;
  }
  // Called when the training of a batch is over.
  void batch_done() { trained_until_ = clock_.monotonic(); }
  // Leaves out the time since batch_done(), which was no training.
  void leave_out_pause() {
    const Nanoseconds now = clock_.monotonic();
    since_ += now - trained_until_;
    trained_until_ = now;
  }
  // Returns the rate from start() or the last take() until batch_done(); 0: no time has passed.
  double take(std::int64_t batch) {
    const double seconds = to_seconds(trained_until_ - since_);
    const double rate = seconds > 0 ? static_cast<double>(batch - first_batch_) / seconds : 0;
    since_ = trained_until_;
    first_batch_ = batch;
    return rate;
  }

 private:
  const Clock& clock_;
  Nanoseconds since_{0}, trained_until_{0};
  std::int64_t first_batch_ = 0;
};

}  // namespace dtrain::train
