// Tells if a validation metric still improves: keeps the best value so far and the number of validations since. All
// ranks get the same result, because the values are the same on all ranks. Training thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "state_visitor.h"

namespace dtrain::train {

class Improvement {
 public:
  // `min_delta`: the least difference that is an improvement.
  Improvement(bool smaller_is_better, double min_delta)
      : smaller_is_better_(smaller_is_better), min_delta_(min_delta) {}

  // Takes the value of a validation after this batch. A value that is not finite is no improvement. The value of a
  // validation before the first batch is a value to compare with, and does not count as a wait.
  void see(double value, std::int64_t batch) {
    if (!is_one(value)) {
      if (batch > 0) ++waited_;
      return;
    }
    best_ = value;
    best_batch_ = batch;
    waited_ = 0;
  }
  std::int64_t waited() const { return waited_; }  // validations since the best one, or since begin_waiting()
  void begin_waiting() { waited_ = 0; }
  std::optional<double> best() const { return best_; }
  std::int64_t best_batch() const { return best_batch_; }
  void forget() {
    best_.reset();
    waited_ = 0;
  }
  // Called by a part that contains this object.
  void visit(StateVisitor& visitor) {
    visitor.real("best", best_);
    visitor.number("best_batch", best_batch_);
    visitor.number("waited", waited_);
  }

 private:
  bool is_one(double value) const {
    if (!std::isfinite(value)) return false;
    if (!best_) return true;
    return smaller_is_better_ ? value < *best_ - min_delta_ : value > *best_ + min_delta_;
  }

  bool smaller_is_better_;
  double min_delta_;
  std::optional<double> best_;
  std::int64_t best_batch_ = 0;
  std::int64_t waited_ = 0;
};

}  // namespace dtrain::train
