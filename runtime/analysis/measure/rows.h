// The run cut into rows in which ranks can be compared. A row is a step that all ranks recorded, together with the
// batches before it that exchanged nothing; or it is a window of a bounded dump, with its outliers if only some of the
// ranks have them. Refers to the RunProfile, which must outlive it. Any thread may read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

struct Row {
  std::int64_t first_batch = 0, last_batch = 0;
  std::int64_t steps = 1;  // of a rank
  bool exchanged = false;  // ends with an exchange; of a window: exchanged at all
  bool window = false;     // sums of many steps, so differences between ranks are what is left of them after adding up
};

class Rows {
 public:
  explicit Rows(const RunProfile& run);

  const std::vector<Row>& rows() const { return rows_; }
  std::size_t ranks() const { return ranks_; }
  // Returns the sums of a rank in a row; `rank` is an index into RunProfile::ranks.
  const StepLine& at(std::size_t row, std::size_t rank) const { return *cells_[row * ranks_ + rank]; }
  std::int64_t steps() const;  // of all rows

 private:
  class Builder;
  std::size_t ranks_;
  std::vector<Row> rows_;  // ascending
  std::vector<const StepLine*> cells_;
  std::deque<StepLine> sums_;  // cells that are not lines of the dump
};

inline std::int64_t phase_of(const StepLine& step, profile::Phase phase) {
  return step.phases[static_cast<std::size_t>(phase)];
}
inline std::int64_t wait_of(const StepLine& step) {
  return phase_of(step, profile::Phase::kAllreduceWait);
}
// The rank's own work, without waiting for others.
inline std::int64_t own_of(const StepLine& step) {
  return minus(step.wall_ns, wait_of(step));
}
// Validation and checkpoints: they are in a step's record but no part of the training step.
inline std::int64_t pauses_of(const StepLine& step) {
  return plus(phase_of(step, profile::Phase::kValidation), phase_of(step, profile::Phase::kCheckpoint));
}
// Returns own_of() without pauses_of().
inline std::int64_t training_of(const StepLine& step) {
  return minus(own_of(step), pauses_of(step));
}
// Returns train_batch with its parts.
inline std::int64_t train_batch_of(const StepLine& step) {
  using profile::Phase;
  return plus(phase_of(step, Phase::kTrainBatch),
              plus(phase_of(step, Phase::kForward), phase_of(step, Phase::kBackward)));
}
// Returns the time of a whole step that ran as a CUDA graph.
inline std::int64_t graph_of(const StepLine& step) {
  return phase_of(step, profile::Phase::kGraph);
}
// A step that is a CUDA graph counts as computing: the times of its exchange and its update are not known.
inline std::int64_t compute_of(const StepLine& step) {
  return plus(train_batch_of(step), graph_of(step));
}
inline std::int64_t loading_of(const StepLine& step) {
  return phase_of(step, profile::Phase::kDataloaderNext);
}

// The rank for which the others wait. In a step that exchanges gradients, no rank continues before the last one
// arrives, and the last one waits least: its allreduce_wait is the exchange itself, and the others' additional wait is
// waiting for that rank.

struct WaitedFor {
  std::int64_t steps = 0;  // steps in which this rank came last
  double seconds = 0;      // the others' wait for it, on average
  double exchange_s = 0;   // duration of these exchanges
  // The rank's delay against the median of the others in the rows in which it came last, by phase.
  std::array<double, profile::kPhaseCount> later_s{};
};

struct WaitSummary {
  std::vector<WaitedFor> ranks;     // as in RunProfile
  std::int64_t compared_steps = 0;  // steps with an exchange that are compared one by one
  double skew_seconds = 0;          // waiting for the last rank: mean over all ranks
  double exchange_seconds = 0;      // the exchange itself
  double exchange_median_s = 0;     // of an exchange that is compared by itself
};

// Leaves out rows without an exchange. If all ranks waited equally long in a row, no rank was waited for.
WaitSummary compare_waits(const Rows& rows);

// Exposed communication: the time of training threads in allreduce_wait, which computing does not hide. It has two
// parts: the exchange itself, and waiting for the rank that comes last. Every text, table and key takes them from here.
// A step that is a CUDA graph has no times of its parts, so its exposed exchange is not known and not included.
struct ExposedCommunication {
  double seconds = 0;            // allreduce_wait of steps that are no graphs, mean over ranks: exchange_s + waiting_s
  double exchange_s = 0;         // the part that the rank that came last had too
  double waiting_s = 0;          // the rest: waiting for the rank that came last
  double graphs_s = 0;           // steps that are CUDA graphs, mean over ranks
  double before_graphs_s = 0;    // in such steps, waiting for the other ranks' announcements
  std::int64_t exchanges = 0;    // of gradients, of the rank with most
  std::int64_t timed = 0;        // exchanges with known times: not in CUDA graphs
  double exchange_median_s = 0;  // of the exchanges recorded in full
  double exchange_mean_s() const { return timed > 0 ? exchange_s / static_cast<double>(timed) : 0; }
};

ExposedCommunication exposed_communication(const RunProfile& run, const WaitSummary& waits);

}  // namespace dtrain::analysis
