// Measures throughput and reports the progress of training to the session, a few times a second. The loss shown is
// smoothed: a mean over batches in which each counts 5% less than the one after it, so that it covers about the last 20
// batches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "dtrain/rank/rank_session.h"
#include "dtrain/train/metrics.h"
#include "loop/lengths.h"
#include "loop/throughput.h"

namespace dtrain::train {

class ProgressMeter {
 public:
  // All references outlive the meter.
  ProgressMeter(run::RankSession& session, const Lengths& lengths, const Position& position)
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
  run::RankSession& session_;
  const Lengths& lengths_;
  const Position& position_;
  Throughput throughput_;
  Nanoseconds shown_{0};
  bool shown_any_ = false;
  std::optional<double> loss_;
  double loss_sum_ = 0, loss_weight_ = 0;  // sums over finite losses
};

}  // namespace dtrain::train
