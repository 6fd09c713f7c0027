// The metrics of training, from what train_batch() returns to lines of metrics.jsonl: kept until they are due, summed,
// and reduced over the ranks. On a device values are summed there, and the host has the sums some batches later, in the
// same round on every rank. Training thread.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "dtrain/run/rank_session.h"
#include "dtrain/train/metrics.h"
#include "loop/lengths.h"
#include "loop/metric_reducer.h"
#include "loop/progress_meter.h"
#include "state/state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

class TrainingMetrics {
 public:
  // `progress` gets the losses. All outlive it.
  TrainingMetrics(run::RankSession& session, TrainingStep& step, const Position& position, ProgressMeter& progress);

  // What the trial has returned for a batch.
  void keep(Metrics metrics, std::int64_t samples);
  // What it has logged besides, in a batch of so many samples.
  void keep_logged(Metrics metrics, std::int64_t samples);
  // Adds the losses kept on the host to the progress, where they are not there yet. Rank 0.
  void show_losses();
  // What was kept is due: begins to copy its sums to the host. Also checks and reports what the step does from time to
  // time.
  void begin();
  // Reduces the sums that have arrived, and writes their lines. Collective.
  void finish();
  // Waits for all that are due. Collective.
  void finish_all();
  // Before a visit that reads: waits for the device, writes what is due, which is part of metrics.jsonl, and adds what
  // has not been read to the sums. Collective.
  void prepare_visit();
  // The sums that are not due yet.
  void visit(StateVisitor& visitor) { sums_.visit(visitor); }

 private:
  struct Due {
    std::int64_t batch = 0, epoch = 0, optimizer_steps = 0;
    double learning_rate = 0;
    MetricReducer::Sums sums;
  };
  void add_unread();
  void write_oldest();

  run::RankSession& session_;
  TrainingStep& step_;
  const Position& position_;
  ProgressMeter& progress_;
  MetricReducer sums_;
  std::vector<std::pair<Metrics, std::int64_t>> unread_;  // on the host, with their samples; read when due
  std::size_t shown_ = 0;                                 // of unread_: their losses are in the progress
  std::vector<std::pair<Metrics, std::int64_t>> unread_logs_;
  std::deque<Due> due_;  // oldest first
};

}  // namespace dtrain::train
