// Measures throughput and reports to the session how far training is, a few times a second. The loss that it shows is
// smoothed: a mean over batches in which each counts 5% less than the one after it. So it is about that of the last 20
// batches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "dtrain/run/rank_session.h"
#include "dtrain/train/metrics.h"
#include "loop/lengths.h"
#include "loop/throughput.h"

namespace dtrain::train {

class ProgressMeter {
 public:
  // All outlive it.
  ProgressMeter(run::RankSession& session, const Lengths& lengths, const Position& position)
      : session_(session), lengths_(lengths), position_(position), throughput_(session.clock()) {}

  void start();
  // The training of a batch is over. What comes before update() and is no training is left out of the throughput by
  // leave_out_pause(), at its end.
  void batch_done() { throughput_.batch_done(); }
  void leave_out_pause() { throughput_.leave_out_pause(); }
  // After each batch. `take_losses` is called when the loss is going to be shown: it calls add_loss() for batches that
  // have not been added.
  void update(const std::function<void()>& take_losses);
  // Of each batch, in their order. One that is not finite is shown, and left out of the mean.
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
  double loss_sum_ = 0, loss_weight_ = 0;  // of finite ones
};

}  // namespace dtrain::train
