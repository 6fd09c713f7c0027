// Measures throughput and reports to the session how far training is, a few times a second.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/run/rank_session.h"
#include "dtrain/train/metrics.h"
#include "loop/throughput.h"

namespace dtrain::train {

struct Position {
  std::int64_t batch = 0, total_batches = 0;  // 0: not known
  std::int64_t epoch = 0;
  std::int64_t epoch_batch = 0, batches_per_epoch = 0;
};

class ProgressMeter {
 public:
  explicit ProgressMeter(run::RankSession& session) : session_(session), throughput_(session.clock()) {}

  void start(const Position& position);
  // The training of a batch is over. What comes before update() and is no training is left out of the throughput by
  // leave_out_pause(), at its end.
  void batch_done() { throughput_.batch_done(); }
  void leave_out_pause() { throughput_.leave_out_pause(); }
  // After each batch. Reads the loss of `latest` (which may wait for the device) only when it is going to be shown.
  void update(const Position& position, std::int64_t samples_per_batch, const Metrics* latest);
  void set_loss(const Metrics& metrics);
  void set_loss(double loss) { loss_ = loss; }

 private:
  run::RankSession& session_;
  Throughput throughput_;
  Nanoseconds shown_{0};
  bool shown_any_ = false;
  std::optional<double> loss_;
};

}  // namespace dtrain::train
