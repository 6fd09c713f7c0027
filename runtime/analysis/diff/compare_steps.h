// The test over steps for the changes from A to B that noise does not explain. It resamples the steps of both runs to
// see how far that alone moves their medians and means. If the runs took turns, it draws whole turns, so that
// influences on both runs cancel. Any thread may call.
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

// Returns only the estimates if a run has fewer than kLeastObservations.
StepTest compare_steps(const Observations& a, const Observations& b, const std::vector<Turn>& turns,
                       const TestOptions& options);

}  // namespace dtrain::analysis::diff
