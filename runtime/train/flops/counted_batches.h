// Counts operators in some batches of a run: the second and the third that this process trains, and a few later ones,
// which are not slow like the first. The first count goes into plan.json ("flops"), the table of the fastest counted
// batch into profile/operators-rank-NNNN.json. Used by the training thread.
//
// A file that cannot be written is a warning and never ends the run.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/profile/operator_counts.h"
#include "dtrain/rank/rank_session.h"
#include "flops/operator_counter.h"

namespace dtrain::train {

class CountedBatches {
 public:
  CountedBatches(run::RankSession& session, bool on_gpu);

  // Called before train_batch(). Counts until the result is destroyed; empty: this batch is not counted.
  std::optional<OperatorCounter::Scope> begin();
  // Called after the scope's end, instead of end(), if the batch was not trained.
  void cancel();
  // Called after train_batch() and after the scope's end.
  void end(std::int64_t batch, std::int64_t samples);
  // Called after the step, outside of its measured time.
  void after_step();
  // Called after the last step.
  void finish();

 private:
  void write_file();

  run::RankSession& session_;
  OperatorCounter counter_;
  std::int64_t trained_ = 0;  // number of batches that this process has trained
  bool counting_ = false;     // true: in this batch
  bool in_plan_ = false, written_ = false;
  profile::OperatorCounts counts_;
  double seconds_per_sample_ = 0;  // of the table in counts_
};

}  // namespace dtrain::train
