// Takes the metrics of training from train_batch() to lines of metrics.jsonl: keeps them until they are due, sums them,
// and reduces them over the ranks. On a device values are summed there, and the host has the sums some batches later,
// in the same round on every rank. Training thread.
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
#include "state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

class TrainingMetrics {
 public:
  // `progress` gets the losses. All references outlive this object.
  TrainingMetrics(run::RankSession& session, TrainingStep& step, const Position& position, ProgressMeter& progress);

  // Keeps the metrics that the trial has returned for a batch.
  void keep(Metrics metrics, std::int64_t samples);
  // Keeps the metrics that the trial has logged besides, in a batch of `samples`.
  void keep_logged(Metrics metrics, std::int64_t samples);
  // Rank 0: adds the losses kept on the host to the progress, unless they are there already.
  void show_losses();
  // Called when the kept metrics are due: begins to copy their sums to the host. Also does the periodic checks and
  // reports of the step.
  void begin();
  // Reduces the sums that have arrived, and writes their lines. Collective.
  void finish();
  // Waits for all sums that are due. Collective.
  void finish_all();
  // Called before a visit that reads: waits for the device, writes the sums that are due (as a part of metrics.jsonl),
  // and adds the metrics that are not read yet to the sums. Collective.
  void prepare_visit();
  // Visits the sums that are not due yet.
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
  std::size_t shown_ = 0;                                 // count of unread_ whose losses are in the progress
  std::vector<std::pair<Metrics, std::int64_t>> unread_logs_;
  std::deque<Due> due_;  // oldest first
};

}  // namespace dtrain::train
