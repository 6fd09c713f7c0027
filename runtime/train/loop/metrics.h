// The metrics of batches become lines of metrics.jsonl. Training thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/metrics.h"
#include "loop/progress.h"
#include "state_visitor.h"
#include "step/training_step.h"

namespace dtrain::train {

struct ReducedMetrics {
  std::map<std::string, double> means;  // or the result of another Reduction; nan: all weights are 0
  std::int64_t samples = 0;             // samples of all ranks
};

// Reduces metrics over batches, and over ranks where they are due. A mean weights each batch by its number of samples,
// or by MetricValue::mean_over(). Values on a device are reduced there, and no thread waits for them before they are
// due.
class MetricReducer {
 public:
  // `kind` ("training", "validation") keeps agreement messages of several reducers apart.
  MetricReducer(std::string kind, comm::ControlPlane& control, comm::Communicator& communicator);

  // Adds the metrics that the trial has returned for a batch.
  void add(const Metrics& metrics, std::int64_t samples);
  // Adds metrics that the trial has logged in a batch of `samples`. Other ranks and batches may lack the names.
  void add_logged(const Metrics& metrics, std::int64_t samples);

  // The values that this rank has added since the last take().
  struct Sums {
    std::map<std::string, double> sums;           // of values on the host; for kMin and kMax their extreme
    std::map<std::string, double> weights;        // counts are exact up to 2^53
    std::map<std::string, Reduction> reductions;  // other than kMean
    std::set<std::string> logged;                 // names that were logged
    Reduction reduction_of(const std::string& name) const;
    std::int64_t samples = 0;
    // The sums of values on a device: one float64 for each name, in the order of the names. Undefined: no values.
    std::vector<std::string> device_names;
    at::Tensor device_sums;
    // Adds the values of device_sums, once the host has them.
    void add_device_sums(std::span<const double> values);
  };
  Sums take();
  // Returns the means over all ranks' sums, which include those of devices. Collective; ranks that had no batch take
  // part with empty sums. Throws Error that names a metric which only some of the ranks with samples return.
  ReducedMetrics reduce(Sums sums);
  // The same with the sums of each logical rank of this rank, which are added in the order of the fixed tree.
  ReducedMetrics reduce_in_tree(std::vector<Sums> sums, const rank::LogicalRanks& ranks);
  // Returns this rank's own means. Not collective.
  static ReducedMetrics local_means(const Sums& sums);
  // Reduces the values added since the last take(). Waits for the device. Collective.
  ReducedMetrics reduce();
  // Visits the values added since the last take(). Waits for the device.
  void visit(StateVisitor& visitor);

 private:
  void add_values(const Metrics& metrics, std::int64_t samples);
  // Gives all `sums`, one of each logical rank, the names of all.
  void agree_on_names(std::span<Sums> sums);
  // Makes the means of the sums over all ranks: for each name of `names` its sum and its weight, then the samples.
  ReducedMetrics means_of(const Sums& names, std::span<const double> sums);

  std::string kind_;
  comm::ControlPlane& control_;
  comm::Communicator& communicator_;
  Sums added_;
  std::map<std::string, at::Tensor> on_device_;  // as Sums::sums
  std::map<std::string, double> restored_;       // sums with which on_device_ begins
  std::int64_t agreements_ = 0;
};

// Takes the metrics of training from train_batch() to lines of metrics.jsonl: keeps them until they are due, sums them,
// and reduces them over the ranks. On a device values are summed there, and the host has the sums some batches later,
// in the same round on every rank.
class TrainingMetrics {
 public:
  // `progress` gets the losses. All references outlive this object.
  TrainingMetrics(rank::RankSession& session, TrainingStep& step, const Position& position, ProgressMeter& progress);

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
  void visit(StateVisitor& visitor) { sums_.front().visit(visitor); }
  // The same of the logical rank with this index on this rank.
  void visit_logical_rank(std::size_t index, StateVisitor& visitor) { visitor.part("metrics", sums_[index]); }

 private:
  struct Due {
    std::int64_t batch = 0, epoch = 0, optimizer_steps = 0;
    double learning_rate = 0;
    std::vector<MetricReducer::Sums> sums;  // of each logical rank of this rank
  };
  // The metrics of a batch, which are on the host and are read when they are due.
  struct Unread {
    std::size_t index = 0;  // of its logical rank
    Metrics metrics;
    std::int64_t samples = 0;
  };
  void add_unread();
  void write_oldest();

  rank::RankSession& session_;
  TrainingStep& step_;
  const Position& position_;
  ProgressMeter& progress_;
  std::vector<MetricReducer> sums_;  // of each logical rank of this rank
  std::vector<Unread> unread_;
  std::size_t shown_ = 0;  // count of unread_ whose losses are in the progress
  std::vector<Unread> unread_logs_;
  std::deque<Due> due_;  // oldest first
};

}  // namespace dtrain::train
