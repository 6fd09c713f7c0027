// Measures throughput and tells the session how far training is, a few times a second.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/run/rank_session.h"
#include "dtrain/train/metrics.h"

namespace dtrain::train {

struct Position {
  std::int64_t batch = 0, total_batches = 0;  // 0: not known
  std::int64_t epoch = 0;
  std::int64_t epoch_batch = 0, batches_per_epoch = 0;
};

class ProgressMeter {
 public:
  explicit ProgressMeter(run::RankSession& session) : session_(session) {}

  void start(const Position& position);
  // After each batch. Reads the loss of `latest` (which may wait for the device) only when it is going to be shown.
  void update(const Position& position, std::int64_t samples_per_batch, const Metrics* latest);
  // What happened since the last batch (a validation) is not training: throughput leaves it out.
  void leave_out_pause();
  void set_loss(const Metrics& metrics);

 private:
  run::RankSession& session_;
  Nanoseconds shown_{0};
  Nanoseconds last_batch_{0};
  std::int64_t shown_batch_ = 0;
  std::optional<double> loss_;
};

}  // namespace dtrain::train
