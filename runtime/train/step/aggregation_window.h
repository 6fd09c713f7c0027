// The open window: the rounds whose gradients one optimizer step applies, aggregation_frequency of them as a rule.
// Plain counters.
#pragma once

#include <cstdint>

#include "state/state_visitor.h"

namespace dtrain::train {

class AggregationWindow {
 public:
  // `average`: the step applies the mean over the window's batches, otherwise their sum.
  AggregationWindow(int length, bool average) : length_(length), average_(average) {}

  void add_batch() { ++own_batches_; }
  // A round begins; also on a rank that has no batch in it.
  void begin_round() {
    ++rounds_;
    ++rounds_begun_;
  }
  // The step has been taken.
  void close() {
    rounds_ = 0;
    own_batches_ = 0;
  }

  void visit(StateVisitor& visitor) {
    visitor.number("rounds", rounds_);
    visitor.number("own_batches", own_batches_);
    visitor.number("rounds_begun", rounds_begun_);
  }

  int length() const { return length_; }  // in rounds
  bool average() const { return average_; }
  bool full() const { return rounds_ == length_; }             // the round that has begun is the window's last
  int rounds() const { return rounds_; }                       // of this window, the one that has begun included
  std::int64_t own_batches() const { return own_batches_; }    // of this rank, in this window
  std::int64_t rounds_begun() const { return rounds_begun_; }  // since training began: the number of the batch

  // What brings the sum over this rank's own batches to what an update takes.
  double own_scale() const {
    if (own_batches_ == 0) return 1;
    return static_cast<double>(average_ ? 1 : rounds_) / static_cast<double>(own_batches_);
  }

 private:
  const int length_;
  const bool average_;
  int rounds_ = 0;
  std::int64_t own_batches_ = 0;
  std::int64_t rounds_begun_ = 0;
};

}  // namespace dtrain::train
