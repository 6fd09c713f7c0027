// The batches of a run in which operators are counted: the second and the third that this process trains, and a few
// later ones, which are no longer slow as first ones are. The first count goes into plan.json ("flops"), the table of
// the fastest counted batch into profile/operators-rank-NNNN.json. Used by the training thread.
//
// A file that cannot be written is a warning and never ends the run.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/profile/operator_counts.h"
#include "dtrain/run/rank_session.h"
#include "flops/operator_counter.h"

namespace dtrain::train {

class CountedBatches {
 public:
  CountedBatches(run::RankSession& session, bool on_gpu);

  // Before train_batch(): counts until the result is destroyed, if this batch is to be counted.
  std::optional<OperatorCounter::Scope> begin();
  // Instead of end(), after the scope's end: the batch was not trained.
  void cancel();
  // After train_batch() and after the scope's end.
  void end(std::int64_t batch, std::int64_t samples);
  // After the step, outside of what it is measured by.
  void after_step();
  // No step follows.
  void finish();

 private:
  void write_file();

  run::RankSession& session_;
  OperatorCounter counter_;
  std::int64_t trained_ = 0;  // batches, by this process
  bool counting_ = false;     // this batch
  bool in_plan_ = false, written_ = false;
  profile::OperatorCounts counts_;
  double seconds_per_sample_ = 0;  // of the table in counts_
};

}  // namespace dtrain::train
