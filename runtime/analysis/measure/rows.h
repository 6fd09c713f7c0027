// The run cut into rows in which ranks can be compared. A row is a step that all ranks recorded, together with the
// batches before it that exchanged nothing; or it is a window of a bounded dump, with its outliers if only some of the
// ranks have them. Refers to the RunProfile, which must outlive it. Any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "read/json_fields.h"

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

}  // namespace dtrain::analysis
