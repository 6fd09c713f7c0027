// Measures throughput and reports to the session how far training is, a few times a second.
#pragma once

#include <cstdint>
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
  // After each batch. Reads the loss of `latest` (which may wait for the device) only when it is going to be shown.
  void update(const Metrics* latest);
  void set_loss(const Metrics& metrics);
  void set_loss(double loss) { loss_ = loss; }

 private:
  run::RankSession& session_;
  const Lengths& lengths_;
  const Position& position_;
  Throughput throughput_;
  Nanoseconds shown_{0};
  bool shown_any_ = false;
  std::optional<double> loss_;
};

}  // namespace dtrain::train
