// Runs an optimizer over flat parameters with libtorch's fused kernels: one call for each run of neighbouring
// parameters that have been updated equally often (all of them, in an ordinary step).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/train/optimizer.h"
#include "flat_parameters.h"

namespace dtrain::train {

class FlatOptimizer {
 public:
  FlatOptimizer(const Optimizer& optimizer, LrSchedule schedule, FlatParameters& parameters);

  // Updates the parameters whose element of `used` is set, from their group's flat gradients.
  void step(std::span<const std::uint8_t> used);
  // Moves the schedule on by one optimizer step.
  void advance_schedule();
  std::int64_t steps() const { return steps_; }
  double learning_rate() const;

 private:
  struct State {        // one a group, same layout as the flat values; undefined where the optimizer needs none
    at::Tensor first;   // momentum buffer, or exp_avg
    at::Tensor second;  // exp_avg_sq
  };
  struct Segment {
    std::size_t group;
    std::int64_t begin, end;  // elements
    std::int64_t updates;     // made so far
  };
  std::vector<Segment> segments(std::span<const std::uint8_t> used) const;
  void update(const Segment& segment);

  Optimizer optimizer_;
  LrSchedule schedule_;
  FlatParameters& parameters_;
  std::vector<State> states_;
  std::vector<std::int64_t> updates_;  // of each parameter
  std::int64_t steps_ = 0;
};

}  // namespace dtrain::train
