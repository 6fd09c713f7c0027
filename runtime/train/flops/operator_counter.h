// Counts what operators compute and move, as the dispatcher sees them.
//
// An operator counts where it is called by the model or by autograd. What it calls itself belongs to it. Operators that
// are only made of others (CompositeImplicitAutograd: linear, matmul, conv2d, cross_entropy_loss) do not count, the
// others do in their place. Views and allocations do not count.
#pragma once

#include <memory>
#include <vector>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "dtrain/profile/operator_counts.h"

namespace dtrain::train {

class OperatorCounter {
 public:
  // `timed`: operators are finished when they return (on CPUs), so the time that they take is measured.
  explicit OperatorCounter(bool timed);

  // While it lives, operators count that this thread runs, and those that autograd runs for it on other threads.
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

  // What has been counted, the longest first; then the counter is empty. Not while a Scope lives.
  std::vector<profile::OperatorCount> take();

  class Table;

 private:
  std::shared_ptr<Table> table_;
};

}  // namespace dtrain::train
