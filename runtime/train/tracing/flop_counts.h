// Counts the FLOPs and the bytes of operators that the dispatcher calls, in some batches of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "dtrain/profile/records.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

// Calls by the model or by autograd count. Calls that an operator makes belong to that operator. Operators that consist
// of others (CompositeImplicitAutograd: linear, matmul, conv2d, cross_entropy_loss) do not count; the others count in
// their place. Views and allocations do not count.
class OperatorCounter {
 public:
  // `timed`: measure the time of operators, which have finished when they return (on CPUs).
  explicit OperatorCounter(bool timed);

  // During its life, the operators of this thread count, and those that autograd runs for this thread on others.
  class Scope {
   public:
    explicit Scope(const OperatorCounter& counter);
    ~Scope();
    Scope& operator=(Scope&&) = delete;

   private:
    c10::DebugInfoGuard counter_;
    at::CallbackHandle callback_;
  };

  // Returns the counts, the longest first, and empties the counter. Not during a Scope's life.
  std::vector<profile::OperatorCount> take();

  class Table;

 private:
  std::shared_ptr<Table> table_;
};

// Counts operators in the second and the third batch that this process trains, and in a few later ones, which are not
// slow like the first. The first count goes into plan.json ("flops"), the table of the fastest counted batch into
// profile/operators-rank-NNNN.json. Used by the training thread.
//
// A file that cannot be written is a warning and never ends the run.
class CountedBatches {
 public:
  CountedBatches(rank::RankSession& session, bool on_gpu);

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

  rank::RankSession& session_;
  OperatorCounter counter_;
  std::int64_t trained_ = 0;  // number of batches that this process has trained
  bool counting_ = false;     // true: in this batch
  bool in_plan_ = false, written_ = false;
  profile::OperatorCounts counts_;
  double seconds_per_sample_ = 0;  // of the table in counts_
};

}  // namespace dtrain::train
