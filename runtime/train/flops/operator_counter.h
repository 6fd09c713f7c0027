// Counts the FLOPs and the bytes of operators that the dispatcher calls.
//
// Calls by the model or by autograd count. Calls that an operator makes belong to that operator. Operators that consist
// of others (CompositeImplicitAutograd: linear, matmul, conv2d, cross_entropy_loss) do not count; the others count in
// their place. Views and allocations do not count.
#pragma once

#include <memory>
#include <vector>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "dtrain/profile/operator_counts.h"

namespace dtrain::train {

class OperatorCounter {
 public:
  // `timed`: measure the time of operators, which have finished when they return (on CPUs).
  explicit OperatorCounter(bool timed);

  // During its life, the operators of this thread count, and those that autograd runs for this thread on others.
  class Scope {
   public:
    explicit Scope(const OperatorCounter& counter);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

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

}  // namespace dtrain::train
