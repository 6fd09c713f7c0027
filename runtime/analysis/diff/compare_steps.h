// The test over steps: which changes from A to B noise does not explain. Resamples the steps of both runs and looks how
// far their medians and means move by that alone; where the runs took turns, whole turns are drawn, so that what
// happened to both cancels. Any thread may call.
#pragma once

#include <cstdint>
#include <vector>

#include "diff/observations.h"
#include "dtrain/analysis/diff.h"

namespace dtrain::analysis::diff {

inline constexpr std::size_t kLeastObservations = 30;

struct TestOptions {
  double confidence = 0.99;
  double min_effect = 0.01;
  int resamples = 2000;
  bool same_work = true;  // otherwise throughput alone is judged
};

struct SideTest {
  double autocorrelation = 0, block_length = 1;
};

struct StepTest {
  DiffQuantity step, throughput;
  std::vector<DiffQuantity> phases;  // without validation and checkpoints
  SideTest a, b;                     // in turns the same: of the turns
};

// Only the estimates where a run has fewer than kLeastObservations.
StepTest compare_steps(const Observations& a, const Observations& b, const std::vector<Turn>& turns,
                       const TestOptions& options);

}  // namespace dtrain::analysis::diff
