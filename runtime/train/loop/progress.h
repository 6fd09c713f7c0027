// The length of the training, in batches of all ranks, the position within it, and how progress is shown.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "dtrain/base/clock.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/metrics.h"

namespace dtrain::train {

struct Lengths {
  std::int64_t global_batch = 0;                  // of all ranks, in samples
  std::optional<std::int64_t> batches_per_epoch;  // the most of any rank; empty: train until every source ends
  std::optional<std::int64_t> total_batches;      // empty: train until `epochs` are over
  std::int64_t epochs = 0;
  // Only the source's has_next_epoch() ends the training; the lengths above are for people to see.
  bool source_decides = false;
  std::int64_t validation_period = 0;  // 0: only at the end
  std::int64_t checkpoint_period = 0;  // 0: none was asked for
};

// Finds the lengths from the experiment and every rank's training data, and writes them to plan.json. DataError: the
// data is less than one batch; ConfigError: a length in epochs for data of unknown length. Collective.
Lengths find_lengths(rank::RankSession& session, const BatchSource& data);

struct Position {
  std::int64_t batches = 0;  // done, in rounds of all ranks
  std::int64_t epoch = 0;
  std::int64_t epoch_batches = 0;  // done of this epoch
  bool due_is_open = false;        // the periodic work after the last batch has not been done
};

// Finds the end of a training that is to last a number of epochs, once `data` has gone on within an epoch: with another
// global batch than before, that epoch has another number of batches. Collective.
void end_after_epochs(rank::RankSession& session, const BatchSource& data, const Position& position, Lengths& lengths);

// Measures batches a second of training, without the work between batches (validation, saving weights).
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

// Measures throughput and reports the progress of training to the session, a few times a second. The loss shown is
// smoothed: a mean over batches in which each counts 5% less than the one after it, so that it covers about the last 20
// batches.
class ProgressMeter {
 public:
  // All references outlive the meter.
  ProgressMeter(rank::RankSession& session, const Lengths& lengths, const Position& position)
      : session_(session), lengths_(lengths), position_(position), throughput_(session.clock()) {}

  void start();
  // Called when the training of a batch is over. Work before update() that is no training is left out of the throughput
  // by leave_out_pause(), which is called at the end of that work.
  void batch_done() { throughput_.batch_done(); }
  void leave_out_pause() { throughput_.leave_out_pause(); }
  // To be called after each batch. `take_losses` is called when the loss is about to be shown: it calls add_loss() for
  // batches that have not been added.
  void update(const std::function<void()>& take_losses);
  // Takes the loss of each batch, in order. A loss that is not finite is shown, and left out of the mean.
  void add_loss(const Metrics& metrics);
  void add_loss(double loss);

 private:
  rank::RankSession& session_;
  const Lengths& lengths_;
  const Position& position_;
  Throughput throughput_;
  Nanoseconds shown_{0};
  bool shown_any_ = false;
  std::optional<double> loss_;
  double loss_sum_ = 0, loss_weight_ = 0;  // sums over finite losses
};

}  // namespace dtrain::train
